# SPDX-License-Identifier: Apache-2.0
"""State dictionaries of sharded modules: whole ones, and this rank's parts.

Names, shapes and order are those of the plain module's state_dict(): tied names are
there twice, persistent buffers and extra state are there. Of buffers, and of what
sharding ignores, all take rank 0's values.
"""

import collections
import collections.abc
import contextlib

import torch

from . import _core, _slices
from ._shard_tensor import ShardTensor, has_values
from ._together import gathered, of_rank0, on_every_rank, same_call
from .errors import FailedPreconditionError, InvalidArgumentError

_KINDS = ("full", "rank0", "sharded")
_MODEL, _OTHERS = "model", "others"  # Sections.
_COPY = "__reduce_ex__"
_EXTRA = "_extra_state"
# How parts of tensors in the form of PyTorch, as DTensor, are loaded.
USE_WHOLE = ("; call full_tensor() of each DTensor on every rank first, or save and load the "
             "state by torch.distributed.checkpoint")

IncompatibleKeys = collections.namedtuple(
    "IncompatibleKeys", ["missing_keys", "unexpected_keys"])


class Guard:
    """Makes state_dict() and load_state_dict() of a sharded module, and of modules in
    it, raise: they would save what this rank has by chance, and load nothing. Copies
    raise before they read a parameter, for which other ranks would have to gather. Those of
    scripted parts alone do not raise."""

    def __init__(self, handle):
        self._open = False
        self._hooks = []
        self._modules = []
        names = [name for name, _ in handle.named_parameters()]
        whole = handle.module_parameters()
        # (name, parameter, storage) of what is sharded.
        self.parts = list(zip(names, whole, map(_storage, whole)))
        sharded = {id(tensor) for tensor in whole}
        for module in handle.module.modules():
            if any(id(tensor) in sharded for tensor in _guarded_by(module)):
                # Those who copy and pickle ask the object, not its class.
                module.__dict__[_COPY] = _slices.refuse_copy
                self._modules.append(module)
                self._hooks += [
                    module.register_state_dict_pre_hook(self._before_save),
                    module.register_load_state_dict_pre_hook(self._before_load)]

    @contextlib.contextmanager
    def opened(self):
        """A scope in which state_dict() may be called."""
        before, self._open = self._open, True
        try:
            yield
        finally:
            self._open = before

    def remove(self):
        """Ends it."""
        for hook in self._hooks:
            hook.remove()
        for module in self._modules:
            module.__dict__.pop(_COPY, None)
        self._hooks, self._modules = [], []

    def _before_save(self, *_):
        if not self._open:
            raise FailedPreconditionError(
                "[python] state_dict() of a sharded module: each rank has a part of "
                "it; expected handle.state_dict() on every rank, which gives whole "
                "tensors (sherd.handle_of(module) is the handle). Where a function takes "
                "those and reads names alone from the module, as peft's save_pretrained("
                "state_dict=...) does, call it in a scope of handle.state_dict_names()")

    def _before_load(self, *_):
        raise FailedPreconditionError(
            "[python] load_state_dict() of a sharded module: each rank has a part of "
            "it; expected handle.load_state_dict(state) on every rank "
            "(sherd.handle_of(module) is the handle)")


def _guarded_by(module):
    """The module's own parameters and, since a script has no hooks, those of its scripted
    children."""
    if isinstance(module, torch.jit.ScriptModule):
        return
    yield from module.parameters(recurse=False)
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            yield from child.parameters()


def check_kind(kind):
    """Raises if `kind` is not a kind of state dictionary."""
    if kind not in _KINDS:
        raise InvalidArgumentError(
            f"[python] kind: expected one of {', '.join(_KINDS)}, found {kind!r}")


def placed(handle):
    """(name, shape, begin) of every parameter that the handle manages, in the order of
    the module: where this rank's slice begins in the flattened one."""
    parameters = handle.core_parameters
    return _core.whole_parameters(parameters) or [
        (name, list(tensor.shape), 0) for name, tensor in parameters.items()]


def own_if_empty(tensor):
    """In place of a tensor without elements one with a storage of its own: the core leaves
    such parameters in the storage of their unit, which a rank alone must not read."""
    if tensor.numel() > 0:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def _storage(tensor):
    """What tells storages apart; None where a sharded parameter has none now."""
    try:
        return tensor.untyped_storage()._cdata
    except RuntimeError:
        return None


def check_parts(handle):
    """Raises where the module has another tensor, or none, in place of a parameter that
    the handle manages: the old values would be saved and loaded by its name. One of a
    replicated module may have another name, by which it is saved, too."""
    named = dict(handle.module.named_parameters(remove_duplicate=False))
    if hasattr(handle, "guard"):
        parts, renamed = handle.guard.parts, set()
    else:
        parts = [(name, tensor, _storage(tensor))
                 for name, tensor in handle.core_parameters.items()]
        renamed = {id(tensor) for tensor in named.values()}
    for name, tensor, storage in parts:
        found = named.get(name)
        if found is None and id(tensor) in renamed:
            continue
        if found is not tensor or _storage(tensor) != storage:
            what = "none" if found is None else "another tensor or other memory"
            raise FailedPreconditionError(
                f"[python] parameter {name}: expected the one that the module had, found "
                f"{what}, so that old values would be saved or loaded by this name; a "
                "module has to be changed before fully_shard() or replicate()")


def _entries(handle):
    """state_dict() of the module, without what other handles have sharded in it."""
    owners = {_slices.owner_of(tensor) for tensor in handle.module.parameters()}
    with contextlib.ExitStack() as guards:
        for one in {handle, *owners} - {None}:
            guards.enter_context(one.guard.opened())
        entries = handle.module.state_dict(keep_vars=True)
    for key, value in list(entries.items()):
        if _slices.owner_of(value) not in (None, handle):
            del entries[key]
    return entries


class Template:
    """What the plain module's state_dict() would have: by its names, in order. What
    another handle has sharded is not there, since that saves it."""

    def __init__(self, handle):
        check_parts(handle)
        self.entries = _entries(handle)
        self.metadata = getattr(self.entries, "_metadata", None)
        whole = placed(handle)
        named = dict(handle.module.named_parameters(remove_duplicate=False))
        of_sharded = {id(named[name]): name for name, _, _ in whole}
        self.shapes = {name: tuple(shape) for name, shape, _ in whole}
        self.begins = {name: begin for name, _, begin in whole}
        # The sharded parameter that an entry is; entries that are other tensors.
        self.sharded, self.others, self.extra = {}, {}, {}
        storages = {_storage(named[name]) for name, _, _ in whole} | {None}
        for key, value in self.entries.items():
            if id(value) in of_sharded:
                self.sharded[key] = of_sharded[id(value)]
            elif key.rpartition(".")[2] == _EXTRA or not isinstance(value, torch.Tensor):
                self.extra[key] = value
            elif value.numel() == 0:
                self.others[key] = own_if_empty(value)
            elif _storage(value) in storages:
                raise InvalidArgumentError(
                    f"[python] {key}: expected a parameter or a tensor with values of "
                    "its own, found a view of a sharded parameter, as a state_dict "
                    "hook makes them")
            else:
                self.others[key] = value

    def ordered(self, values):
        """These values of the entries, as state_dict() returns them."""
        result = collections.OrderedDict(
            (key, values[key]) for key in self.entries if key in values)
        if self.metadata is not None:
            result._metadata = self.metadata
        return result

    def shape(self, key):
        if key in self.sharded:
            return self.shapes[self.sharded[key]]
        return tuple(self.others[key].shape)


def _state_of(handle, template):
    state = _core.CheckpointState()
    state.add_parameters(handle.core_parameters)
    state.add_tensors(_OTHERS, list(template.others.items()), True)
    return state


def _prepared(handle):
    """The template and a state with its tensors. Collective."""
    def prepare():
        template = Template(handle)
        return template, _state_of(handle, template)
    return on_every_rank(handle.mesh.world, prepare)


def broadcast(world, tensors):
    """Rank 0's dictionary of tensors, on every rank, one tensor at a time."""
    described = of_rank0(world, lambda: [
        (name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()])
    result = {}
    for name, shape, dtype in described:
        result[name] = (tensors[name].contiguous() if world.rank == 0
                        else torch.empty(shape, dtype=dtype, device="cpu"))
        if result[name].numel() > 0:
            world.broadcast([result[name]])
    return result


def state_dict(handle, kind="full"):
    """See FullyShardedDataParallel.state_dict()."""
    check_kind(kind)
    if kind == "sharded":
        return _parts(handle)
    with same_call(handle.mesh.world, f"handle.state_dict({kind!r})"):
        return _whole(handle, kind)


def _whole(handle, kind):
    template, state = _prepared(handle)
    full = _core.gather_full_state(handle.mesh.world, state)
    model, others = full.get(_MODEL, {}), full.get(_OTHERS, {})
    if kind == "full":
        model = broadcast(handle.mesh.world, model)
        others = broadcast(handle.mesh.world, others)
    elif handle.mesh.world.rank != 0:
        return collections.OrderedDict()
    values = {key: model[name] for key, name in template.sharded.items()}
    return template.ordered(values | others | template.extra)


def _parts(handle):
    template = Template(handle)
    slices = dict(handle.core_parameters.items())
    empty = torch.empty(0, device="cpu")
    values = {key: ShardTensor(template.shapes[name], slices.get(name, empty),
                               template.begins[name])
              for key, name in template.sharded.items()}
    first = handle.mesh.world.rank == 0
    for key, value in template.others.items():
        values[key] = ShardTensor(value.shape, value.detach().reshape(-1), 0, first)
    return template.ordered(values | template.extra)


def wait_for_readers(handle):
    """Waits, before values are loaded, until no rank reads parameters in shared memory any
    more: after an evaluation, other ranks may still be reading. When such a scope ends, all
    ranks have finished reading. Collective. Does nothing for a replicated module."""
    if hasattr(handle, "summon_full_parameters"):
        unit = min(handle.units(), key=lambda unit: unit.bytes)
        handle.summon_full_parameters(
            read_only=True, rank0_only=True, module=unit.name).close()


def load_state_dict(handle, state, strict=True):
    """See FullyShardedDataParallel.load_state_dict()."""
    def describe():
        if not isinstance(state, collections.abc.Mapping):
            raise InvalidArgumentError(
                "[python] load_state_dict: expected a dictionary of tensors by name, "
                "which may be empty on ranks other than 0, found a "
                f"{type(state).__name__}")
        parts = [isinstance(value, ShardTensor) for value in state.values()]
        return [any(parts), bool(parts)]

    world = handle.mesh.world
    with same_call(world, "handle.load_state_dict()"):
        of_ranks = gathered(world, on_every_rank(world, describe))
        wait_for_readers(handle)
        if not any(sharded for sharded, _ in of_ranks):
            return _load_full(handle, state, strict)
        if not all(sharded or not some for sharded, some in of_ranks):
            raise InvalidArgumentError(
                "[python] load_state_dict: expected the same kind of state on every "
                "rank, found parts of tensors on some and whole ones on others")
        return _load_parts(handle, state, strict)


def _compare(template, state, strict):
    """Names that only one side has; raises for them if strict, and for shapes."""
    missing = [key for key in template.entries if key not in state]
    unexpected = [key for key in state if key not in template.entries]
    wrong, hint = [], ""
    if strict:
        wrong += [f"no {key}" for key in missing]
        wrong += [f"{key}, which the module lacks" for key in unexpected]
    for key, value in state.items():
        if key not in template.entries or key in template.extra:
            continue
        shape = template.shape(key)
        if not isinstance(value, torch.Tensor):
            wrong.append(f"{key}: a {type(value).__name__} instead of a tensor")
        elif not isinstance(value, ShardTensor) and not has_values(value):
            wrong.append(f"{key}: a {type(value).__name__} instead of a plain tensor")
            hint = USE_WHOLE
        elif tuple(value.shape) != shape:
            wrong.append(f"{key} of shape {tuple(value.shape)} instead of {shape}")
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise InvalidArgumentError(
            "[python] load_state_dict: expected the names and shapes of the plain "
            f"module, found {'; '.join(wrong[:8])}{more}{hint}")
    return IncompatibleKeys(missing, unexpected)


def _dtypes(handle):
    """The dtype of each sharded parameter; ranks may have no slice of some."""
    mine = {name: str(tensor.dtype).removeprefix("torch.")
            for name, tensor in handle.core_parameters.items()}
    names = {}
    for of_rank in gathered(handle.mesh.world, mine):
        names.update(of_rank)
    return {name: getattr(torch, dtype) for name, dtype in names.items()}


def _load_full(handle, state, strict):
    template, target = _prepared(handle)
    dtypes = _dtypes(handle)
    full, world = {}, handle.mesh.world

    def compare():
        keys = _compare(template, state, strict)
        model = {name: state[key].detach().to(device="cpu", dtype=dtypes[name])
                 for key, name in template.sharded.items() if key in state}
        others = {key: state[key].detach().to(device="cpu", dtype=value.dtype)
                  for key, value in template.others.items() if key in state}
        extra = {key: state[key] for key in template.extra if key in state}
        full.update({_MODEL: model, _OTHERS: others})
        return [list(keys.missing_keys), list(keys.unexpected_keys), extra]

    missing, unexpected, extra = of_rank0(world, compare)
    _core.scatter_full_state(world, full, target, False)
    on_every_rank(world, lambda: set_extra_state(handle.module, extra))
    return IncompatibleKeys(missing, unexpected)


def with_extra_state(module):
    """The module and those in it that have extra state, by the keys that state_dict() has
    for it."""
    return {f"{name}.{_EXTRA}".removeprefix("."): owner
            for name, owner in module.named_modules(remove_duplicate=False)
            if type(owner).get_extra_state is not torch.nn.Module.get_extra_state}


def set_extra_state(module, extra):
    """Gives modules the extra state that is theirs by its keys."""
    for key, value in extra.items():
        owner = key.removesuffix(_EXTRA).removesuffix(".")
        module.get_submodule(owner).set_extra_state(value)


def _load_parts(handle, state, strict):
    world = handle.mesh.world

    def check():
        template, mine = Template(handle), _parts(handle)
        keys = _compare(template, state, strict)
        for key in [*template.sharded, *template.others]:
            if key in state:
                _check_part(key, mine[key], state[key])
        return template, mine, keys

    def load():
        with torch.no_grad():
            for key, value in state.items():
                if key in template.others:
                    template.others[key].copy_(value.elements.view(value.shape))
                elif key in template.sharded:
                    mine[key].elements.copy_(value.elements)
        set_extra_state(handle.module,
                        {key: state[key] for key in template.extra if key in state})
    template, mine, keys = on_every_rank(world, check)
    on_every_rank(world, load)
    handle.publish()
    return keys


def _check_part(key, into, value):
    if not isinstance(value, ShardTensor):
        raise InvalidArgumentError(
            f"[python] load_state_dict: {key}: expected a rank's part, as state_dict("
            "'sharded') has it, found a whole tensor beside parts")
    have = (value.begin, value.elements.numel())
    want = (into.begin, into.elements.numel())
    if have[1] != want[1] or (have != want and want[1] > 0):
        raise InvalidArgumentError(
            f"[python] {key}: expected elements {want[0]} to {sum(want)}, found "
            f"{have[0]} to {sum(have)}, as another number of ranks, or other "
            "units or frozen parameters have them; "
            "state_dict('full') fits any")
