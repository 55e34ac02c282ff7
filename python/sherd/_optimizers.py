# SPDX-License-Identifier: Apache-2.0
"""What an optimizer has on this rank: one of sherd's, or one of torch.optim."""

import copy

import torch

from . import _core
from ._optimizer_state import first_state, hyperparameters, is_trained, starts_alike
from .errors import InvalidArgumentError
from .state import placed

SECTION = "optimizer"
_OURS = (_core.AdamW, _core.SGD, _core.Muon)


def _trained(optimizer):
    """The names of an optimizer of sherd, without those of frozen parameters."""
    return {name for name, tensor in optimizer.core_parameters.items()
            if tensor.requires_grad}


class OwnState:
    """What one of sherd's optimizers, or several over parts of the parameters, have on
    this rank. Each has one group."""

    def __init__(self, handle, optimizers, names):
        self.handle, self.optimizers = handle, optimizers
        self.called = names  # By the program.
        self.sections = [SECTION] * len(optimizers)  # Of a checkpoint.
        names = sum(self.groups(), [])
        if len(set(names)) != len(names):
            raise InvalidArgumentError(
                "[python] expected optimizers over different parts of the parameters, "
                f"as sherd.split() makes them, found {len(optimizers)} optimizers of "
                f"{len(names)} slices, {len(set(names))} of them different")
        self.tensors = None  # By name and key.
        self.kept = []  # Tensors and their values.

    def groups(self):
        """Names of this rank by group."""
        return [[name for name, _ in optimizer.core_parameters.items()]
                for optimizer in self.optimizers]

    def kind(self, group):
        """The name of the optimizer of that group."""
        return type(self.optimizers[group]).__name__

    def options(self):
        """Hyperparameters by group."""
        return [{"lr": optimizer.lr} for optimizer in self.optimizers]

    def set_options(self, groups):
        for optimizer, saved in zip(self.optimizers, groups):
            if "lr" in saved:
                optimizer.lr = float(saved["lr"])

    def items(self, all_of_them):
        """(name, key, tensor) of what there is; of all parameters that are not frozen, too,
        if asked for."""
        return [item for optimizer in self.optimizers
                for item in _core.optimizer_tensors(
                    optimizer, _trained(optimizer) if all_of_them else set())]

    def keys(self, group):
        """The keys of a parameter's state; None where they are not known."""
        optimizer = self.optimizers[group]
        names = _trained(optimizer)
        keys = {key for _, key, _ in _core.optimizer_tensors(optimizer, names)}
        known = keys or (names and not isinstance(
            optimizer, _core.Muon))  # Of which a rank may have no matrix.
        return keys if known else None

    def add_to(self, state):
        """Adds all there is to a CheckpointState."""
        for section, optimizer in zip(self.sections, self.optimizers):
            state.add_optimizer(section, optimizer, self.handle.core_parameters)

    def prepare(self, _described):
        """Called before tensors are written to what add_to() adds."""

    def keep_others(self, described):
        """Called after prepare(): what is not described stays as it is."""
        names = {name for name, *_ in described}
        self.kept = [(tensor, tensor.clone()) for name, _, tensor in self.items(True)
                     if name not in names]

    def finish(self):
        """Called when they are written; the others are as before the first step."""
        for tensor, value in self.kept:
            tensor.copy_(value)
        self.kept = []

    def _tensor(self, name, key):
        if self.tensors is None:
            self.tensors = {(name, key): tensor
                            for name, key, tensor in self.items(True)}
        if (name, key) not in self.tensors:  # What was trained before it was frozen.
            self.tensors.update(
                {(found, key): tensor for optimizer in self.optimizers
                 for found, key, tensor in _core.optimizer_tensors(optimizer, {name})})
        return self.tensors.get((name, key))

    def part_numel(self, name, key):
        """How many elements this rank has of that state, where it has any."""
        tensor = self._tensor(name, key)
        return 0 if tensor is None else tensor.numel()

    def assign(self, name, key, value):
        tensor = self._tensor(name, key)
        if value.data_ptr() != tensor.data_ptr():
            tensor.copy_(value.view(tensor.shape))


class TorchState:
    """What an optimizer of torch.optim over slices has on this rank."""

    def __init__(self, handle, optimizer):
        self.handle, self.optimizer = handle, optimizer
        self.called, self.sections = [SECTION], [SECTION]
        self.slices = dict(handle.core_parameters.items())
        self.names = {id(tensor): name for name, tensor in self.slices.items()}
        self.prepared = None
        self.kept = {}  # State by tensor.
        self.numbers = None  # By name and key: the types of what is no tensor.

    def groups(self):
        """Names of this rank by group."""
        groups = []
        for group in self.optimizer.param_groups:
            groups.append([self._name(tensor) for tensor in group["params"]
                           if self._counts(tensor)])
        return groups

    def kind(self, _group):
        """The name of the optimizer."""
        return type(self.optimizer).__name__

    def _counts(self, tensor):
        """Whether it is one of the handle's or, by mistake, one that is trained
        without."""
        return id(tensor) in self.names or is_trained(tensor)

    def _name(self, tensor):
        if id(tensor) not in self.names:
            raise InvalidArgumentError(
                f"[python] {type(self.optimizer).__name__}: expected an optimizer over "
                "handle.parameters(), found a parameter of shape "
                f"{tuple(tensor.shape)} that is none of them")
        return self.names[id(tensor)]

    def options(self):
        """Hyperparameters by group."""
        return [hyperparameters(group) for group in self.optimizer.param_groups]

    def set_options(self, groups):
        for mine, saved in zip(self.optimizer.param_groups, groups):
            mine.update(copy.deepcopy(hyperparameters(saved)))

    def keys(self, group):
        """The keys of a parameter's state; None where they are not known."""
        first = first_state(self.optimizer, group, torch.zeros(2, device="cpu"))
        return None if first is None else set(first)

    def items(self, all_of_them):
        """(name, key, tensor) of what there is; of all parameters if asked for, which raises
        where a parameter that was not updated yet has no state that does the same."""
        items = []
        for number, group in enumerate(self.optimizer.param_groups):
            for tensor in group["params"]:
                if not self._counts(tensor):
                    continue
                state = self.optimizer.state.get(tensor)
                if not state and all_of_them and tensor.requires_grad:
                    state = self._first_state(number, tensor)
                items += self._items_of(tensor, state or {})
        return items

    def _first_state(self, number, tensor):
        first = first_state(self.optimizer, number, tensor)
        # Without any state this is room for what is loaded.
        if self.optimizer.state and first and not starts_alike(self.optimizer, number, tensor):
            raise InvalidArgumentError(
                f"[python] {type(self.optimizer).__name__}: expected a step that has updated "
                "every parameter, or an optimizer whose first step is the same from a state "
                f"that is there before, found {self._name(tensor)} not updated yet")
        return first or {}

    def _items_of(self, tensor, state):
        name, items = self._name(tensor), []
        for key, value in state.items():
            if isinstance(value, float):
                value = torch.tensor(value, dtype=torch.float64, device="cpu")  # All bits.
            if isinstance(value, int):
                value = torch.tensor(value, device="cpu")
            if value is None:
                continue
            if not isinstance(value, torch.Tensor) or (
                    value.dim() > 0 and value.shape != tensor.shape):
                found = (f"a tensor of shape {tuple(value.shape)}"
                         if isinstance(value, torch.Tensor) else type(value).__name__)
                raise InvalidArgumentError(
                    f"[python] {type(self.optimizer).__name__}: expected state with "
                    f"the shape of its slice {tuple(tensor.shape)} or one number, "
                    f"found {key} of {name}: {found}")
            items.append((name, key, value))
        return items

    def add_to(self, state):
        """Adds all there is, or what was prepared, to a CheckpointState."""
        items = self.items(False) if self.prepared is None else self.prepared
        state.add_optimizer(
            self.sections[0], lambda: items, self.handle.core_parameters)

    def prepare(self, described):
        """Called before tensors are written to what add_to() adds: makes those
        described, (name, key, dtype, whether one number), of this rank's slices."""
        self.prepared = []
        # Of these parameters everything whole is one number.
        numbers = {name for name, shape, _ in placed(self.handle) if not list(shape)}
        for name, key, dtype, is_number in described:
            if name in self.slices:
                alone = is_number and (key == "step" or name not in numbers)
                shape = () if alone else self.slices[name].shape
                self.prepared.append(
                    (name, key, torch.zeros(shape, dtype=dtype, device="cpu")))

    def keep_others(self, described):
        """Called after prepare(): what is not described stays as it is."""
        names = {name for name, *_ in described}
        self.kept = {tensor: self.optimizer.state[tensor]
                     for name, tensor in self.slices.items()
                     if name not in names and tensor in self.optimizer.state}

    def finish(self):
        """Called when they are written; the others have no state, as before a step."""
        self._find_numbers()
        self.optimizer.state.clear()
        self.optimizer.state.update(self.kept)
        self.kept = {}
        for name, key, value in self.prepared:
            self.assign(name, key, value)
        self.prepared = None

    def _find_numbers(self):
        """Notes which state is a number of Python, in what is there or would be at first."""
        if self.numbers is not None:
            return
        self.numbers = {}
        for number, group in enumerate(self.optimizer.param_groups):
            first = first_state(self.optimizer, number, torch.zeros(2, device="cpu")) or {}
            for tensor in group["params"]:
                state = self.optimizer.state.get(tensor) or first
                self.numbers.update(
                    {(id(tensor), key): type(value) for key, value in state.items()
                     if isinstance(value, (int, float))})

    def part_numel(self, name, _key):
        """How many elements this rank has of a state like its slice."""
        return self.slices[name].numel() if name in self.slices else 0

    def assign(self, name, key, value):
        tensor = self.slices[name]
        if value.dim() > 0:
            value = value.view(tensor.shape)  # A part is flat, a replica's is not.
        if value.dim() > 0 and value.is_floating_point() and key != "step":
            value = value.to(tensor.dtype)
        self._find_numbers()
        number = self.numbers.get((id(tensor), key))
        if number is not None and value.numel() == 1:
            value = number(value.item())
        elif value.dim() == 0 and key != "step" and not value.is_floating_point():
            value = value.item()
        self.optimizer.state[tensor][key] = value


def state_of(handle, optimizer):
    """What an optimizer, or a dictionary of several of sherd's, has on this rank."""
    several = optimizer if isinstance(optimizer, dict) else {SECTION: optimizer}
    if several and all(isinstance(one, _OURS) for one in several.values()):
        return OwnState(handle, list(several.values()), list(several))
    if isinstance(optimizer, torch.optim.Optimizer):
        return TorchState(handle, optimizer)
    raise InvalidArgumentError(
        "[python] expected an optimizer of sherd or of torch.optim, or a dictionary of "
        f"several of sherd's, found a {type(optimizer).__name__}")
