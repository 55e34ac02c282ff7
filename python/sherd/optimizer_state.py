# SPDX-License-Identifier: Apache-2.0
"""The state of optimizers by parameter name, whole or in parts.

Its form is that of torch.distributed.checkpoint.state_dict: {"state": {NAME: {KEY:
tensor}}, "param_groups": [{..., "params": [NAME, ...]}]}, for sherd's optimizers and
for those of torch.optim whose state of a parameter has its shape or is one number.
"""

import collections.abc
import itertools
from typing import Any

import torch

from . import _core
from ._handles import check_handle
from ._optimizer_state import hyperparameters
from ._optimizers import SECTION, state_of
from ._shard_tensor import ShardTensor, has_values
from ._together import described, gathered, kind_of, of_rank0, on_every_rank, same_call
from .errors import InvalidArgumentError
from .state import USE_WHOLE, broadcast, check_kind, placed


def named_groups(handle, mine):
    """The names of each group on all ranks, in the order of the module. Collective."""
    of_ranks = gathered(
        handle.mesh.world, on_every_rank(handle.mesh.world, mine.groups))
    if len({len(groups) for groups in of_ranks}) != 1:
        raise InvalidArgumentError(
            "[python] expected as many parameter groups on every rank, found "
            f"{[len(groups) for groups in of_ranks]}")
    order = [name for name, _, _ in placed(handle)]
    result = []
    for parts in zip(*of_ranks):
        names = {name for part in parts for name in part}
        result.append([name for name in order if name in names])
    return result


def frozen_and_without_state(handle, with_state):
    """The names of parameters of which there is no state to load: frozen ones that were saved
    without any or that the handle does not manage, so that they never train, and those
    without elements."""
    managed = {name for name, _, _ in placed(handle)}
    named = dict(handle.module.named_parameters())
    frozen = {name for name, parameter in named.items() if not parameter.requires_grad}
    empty = {name for name, parameter in named.items() if parameter.numel() == 0}
    return frozen - (set(with_state) & managed) | empty


def check_groups(mine, groups, saved, with_state, strict=True):
    """Raises unless `saved` groups have the names of ours, in the same order. What is
    frozen here does not count, unless the handle manages it and it was saved with state: a
    sharded module has it among the parameters of its optimizer, a replicated one does
    not. Without `strict` names that only one side has do not count either."""
    frozen = frozen_and_without_state(mine.handle, with_state)
    saved_names = [list(group.get("params", [])) for group in saved]
    ours = [set(names) - frozen for names in groups]
    theirs = [set(names) - frozen for names in saved_names]
    both = set().union(*ours) & set().union(*theirs)
    if strict:
        alike = ours == theirs
    else:
        alike = all(our & both == their & both for our, their in itertools.zip_longest(
            ours, theirs, fillvalue=set()))
    if not alike:
        raise InvalidArgumentError(
            f"[python] expected parameter groups of {_shown(groups)}, found "
            f"{_shown(saved_names)}; {_difference(ours, theirs)}")


def _difference(ours, theirs):
    """What tells two lists of sets of names apart."""
    names, others = set().union(*ours), set().union(*theirs)
    found = []
    for which, only in (("first", names - others), ("second", others - names)):
        if only:
            more = f" and {len(only) - 8} more" if len(only) > 8 else ""
            found.append(
                f"only the {which} have {', '.join(sorted(map(str, only))[:8])}{more}")
    return "; ".join(found) or "these have the same names in other groups"


def _shown(groups):
    return ", ".join(
        f"{len(names)} ({', '.join(map(str, names[:3]))}"
        f"{', ...' if len(names) > 3 else ''})" for names in groups) or "none"


def check_keys(mine, groups, found):
    """Raises unless `found`, keys by name, are those that this optimizer has. State
    that a parameter has not yet is no mistake."""
    for number, names in enumerate(groups):
        expected = mine.keys(number)
        for name in names:
            keys = found.get(name)
            if expected is not None and keys and set(keys) != expected:
                raise InvalidArgumentError(
                    f"[python] the state of {name}: expected that of {mine.kind(number)}, "
                    f"{', '.join(sorted(expected)) or 'nothing'}, found that of another "
                    f"optimizer, {', '.join(sorted(keys))}")


def optimizer_state_dict(handle, optimizer: Any, kind: str = "full") -> dict[str, Any]:
    """The state of `optimizer` by parameter name. Collective.

    handle: of fully_shard() or replicate(). optimizer: one of sherd's, a dictionary of
    several over the parts of split(), or one of torch.optim over
    ``handle.parameters()``.
    kind: "full" gives every rank whole tensors, "rank0" rank 0 alone and the others
        an empty dictionary; "sharded" this rank's parts, which
        torch.distributed.checkpoint saves and loads, with the first state of
        parameters that were not updated yet.

    Raises sherd.Error, on every rank, for an optimizer over other parameters, for state that
    has neither the shape of its parameter nor is one number, and, with "sharded", where some
    parameters were not updated yet and the optimizer's first step from state that is there
    would be another one, as that of SGD with dampening. Mirrors
    torch.distributed.checkpoint.state_dict.get_optimizer_state_dict().
    """
    check_handle(handle)
    check_kind(kind)
    call = described(
        "sherd.optimizer_state_dict", optimizer=kind_of(optimizer), kind=kind)
    with same_call(handle.mesh.world, call):
        return _state_dict(handle, optimizer, kind)


def _state_dict(handle, optimizer, kind):
    world = handle.mesh.world
    mine = on_every_rank(world, lambda: state_of(handle, optimizer))
    names = named_groups(handle, mine)
    groups = [options | {"params": of_group}
              for options, of_group in zip(mine.options(), names)]
    if kind == "sharded":
        return {"state": on_every_rank(world, lambda: _parts(handle, mine)),
                "param_groups": groups}
    state = _core.CheckpointState()
    on_every_rank(world, lambda: mine.add_to(state))
    full = _core.gather_full_state(world, state).get(SECTION, {})
    if kind == "full":
        full = broadcast(world, full)
    elif world.rank != 0:
        return {}
    result = {}
    for name, tensor in full.items():
        key, parameter = name.split(".", 1)
        result.setdefault(parameter, {})[key] = tensor
    order = {name: place for place, name in enumerate(sum(names, []))}
    return {"state": dict(sorted(result.items(), key=lambda item: order[item[0]])),
            "param_groups": groups}


class _Places:
    """Which parts of state that is like parameters belong to this rank."""

    def __init__(self, handle):
        self._whole = {name: (tuple(shape), begin)
                       for name, shape, begin in placed(handle)}
        self._slices = dict(handle.core_parameters.items())

    def of(self, name, numel):
        """The whole shape, and where this rank's part of `numel` elements begins."""
        shape, begin = self._whole[name]
        if name not in self._slices or numel != self._slices[name].numel():
            begin = 0  # Muon's, which one rank has whole.
        return shape, begin

    def check(self, mine, name, key, value):
        """Raises unless this rank has that state, and `value` is its part or one number."""
        numel = mine.part_numel(name, key)
        expected = (*self.of(name, numel), numel) if numel else None
        if isinstance(value, ShardTensor):
            found = (tuple(value.shape), value.begin, value.elements.numel())
            fits, shown = found == expected, _elements(*found)
        else:
            is_whole = isinstance(value, torch.Tensor) and value.dim() > 0
            fits = numel > 0 and not is_whole
            shown = "a whole tensor" if is_whole else "one number"
        if not fits:
            raise InvalidArgumentError(
                f"[python] {key} of {name}: expected "
                f"{_elements(*expected) if expected else 'nothing on this rank'}, found "
                f"{shown}, as another number of ranks has it; "
                "optimizer_state_dict(..., 'full') fits any")


def _elements(shape, begin, numel):
    return f"elements {begin} to {begin + numel} of shape {shape}"


def _parts(handle, mine):
    places, result = _Places(handle), {}
    for name, key, tensor in mine.items(True):
        if tensor.dim() > 0:
            shape, begin = places.of(name, tensor.numel())
            tensor = ShardTensor(shape, tensor.reshape(-1), begin)
        result.setdefault(name, {})[key] = tensor
    return result


def load_optimizer_state_dict(handle, optimizer: Any,
                              state: dict[str, Any]) -> None:
    """Loads what optimizer_state_dict() of any number of ranks, or
    get_optimizer_state_dict() of a plain module, gives, or the state_dict() of an optimizer
    over the parameters of a plain module in the same groups and order. Collective. Of whole tensors
    rank 0's are taken; other ranks' dictionaries may be empty. Hyperparameters are
    taken as torch.optim takes them; sherd's optimizers take the learning rate.

    Raises sherd.Error, on every rank, for the state of another optimizer, of other
    parameters or groups, and for other shapes.
    """
    check_handle(handle)
    world = handle.mesh.world
    call = described("sherd.load_optimizer_state_dict", optimizer=kind_of(optimizer))
    with same_call(world, call):
        mine = on_every_rank(world, lambda: state_of(handle, optimizer))
        names = named_groups(handle, mine)
        is_sharded = on_every_rank(world, lambda: _has_parts(state))
        if any(gathered(world, is_sharded)):
            _load_parts(handle, mine, names, state)
        else:
            _load_full(world, mine, names, state)


def _has_parts(state):
    if not isinstance(state, collections.abc.Mapping):
        raise InvalidArgumentError(
            "[python] load_optimizer_state_dict: expected a dictionary of state and "
            "param_groups, which may be empty on ranks other than 0, found a "
            f"{type(state).__name__}")
    return any(isinstance(value, ShardTensor) for of_one in state.get("state", {}).values()
               for value in of_one.values())


def _with_unmanaged(handle, names, groups):
    """`names` with parameters that are in no group of ours, where exactly one group of a plain
    run has so many more: those without elements, or these and frozen ones."""
    order = dict(handle.module.named_parameters())
    others = frozen_and_without_state(handle, ()) - set(sum(names, []))
    more = [len(group["params"]) - len(of_group) for group, of_group in zip(groups, names)]
    for added in ({name for name in others if order[name].requires_grad}, others):
        if len(groups) == len(names) and sorted(more) == [0] * (len(more) - 1) + [len(added)]:
            return [[name for name in order if name in added.union(of_group)] if lacks
                    else of_group for of_group, lacks in zip(names, more)]
    return names


def _with_names(mine, names, state):
    """`state` by name, where torch.optim has made it by the places of parameters: of the
    groups with as many parameters in the same order."""
    groups = state["param_groups"]
    places = [place for group in groups for place in group.get("params", [])]
    if not places or not all(isinstance(place, int) for place in places):
        return state
    in_order = all([name for name in all_of_group if name in set(of_rank)] == of_rank
                   for all_of_group, of_rank in zip(names, mine.groups()))
    names = _with_unmanaged(mine.handle, names, groups)
    if not in_order or [len(group["params"]) for group in groups] != list(map(len, names)):
        raise InvalidArgumentError(
            "[python] expected names of parameters, or their places in groups of "
            f"{_shown(names)} in the order of the module, found places in groups of "
            f"{', '.join(str(len(group['params'])) for group in groups)}; torch.distributed."
            "checkpoint.state_dict.get_optimizer_state_dict(plain, optimizer) makes a state "
            "with names where it was saved")
    name_of = dict(zip(places, sum(names, [])))
    return {"state": {name_of[place]: of_one for place, of_one in state["state"].items()
                      if place in name_of},
            "param_groups": [group | {"params": [name_of[place] for place in group["params"]]}
                             for group in groups]}


def _checked(mine, names, state):
    """The state that is to be loaded, by name."""
    if set(state) != {"state", "param_groups"}:
        raise InvalidArgumentError(
            "[python] expected a dictionary of state and param_groups, found one of "
            f"{', '.join(map(str, state)) or 'nothing'}")
    state = _with_names(mine, names, state)
    # An entry that is None is none, as a momentum_buffer of SGD may be.
    saved = {name: {key: value for key, value in of_one.items() if value is not None}
             for name, of_one in state["state"].items()}
    saved = {name: of_one for name, of_one in saved.items() if of_one}
    for name, of_one in saved.items():
        for key, value in of_one.items():
            if isinstance(value, torch.Tensor) and not (
                    isinstance(value, ShardTensor) or has_values(value)):
                raise InvalidArgumentError(
                    f"[python] {key} of {name}: expected a plain tensor, found a "
                    f"{type(value).__name__}{USE_WHOLE}")
    check_groups(mine, names, state["param_groups"], saved)
    check_keys(mine, names, saved)
    left_out = frozen_and_without_state(mine.handle, saved)
    return {name: of_one for name, of_one in saved.items() if name not in left_out}


def _load_parts(handle, mine, names, state):
    world = handle.mesh.world

    parts = {}

    def check():
        parts.update(_checked(mine, names, state))
        places = _Places(handle)
        for name, of_one in parts.items():
            for key, value in of_one.items():
                places.check(mine, name, key, value)

    def load():
        for name, of_one in parts.items():
            for key, value in of_one.items():
                if isinstance(value, ShardTensor):
                    value = value.elements
                mine.assign(name, key, value)
        mine.set_options(state["param_groups"])
    on_every_rank(world, check)
    on_every_rank(world, load)


def _load_full(world, mine, names, state):
    full = {}

    def describe():
        tensors = {(name, key): torch.as_tensor(value).detach()
                   for name, of_one in _checked(mine, names, state).items()
                   for key, value in of_one.items()}
        full[SECTION] = {f"{key}.{name}": tensor
                         for (name, key), tensor in tensors.items()}
        return ([[name, key, tensor.dtype, tensor.dim() == 0]
                 for (name, key), tensor in tensors.items()],
                [hyperparameters(group) for group in state["param_groups"]])

    tensors, groups = of_rank0(world, describe)
    mine.prepare(tensors)
    target = _core.CheckpointState()
    on_every_rank(world, lambda: mine.add_to(target))
    _core.scatter_full_state(world, full, target, True)
    mine.finish()
    mine.set_options(groups)
