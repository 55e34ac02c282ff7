# SPDX-License-Identifier: Apache-2.0
"""Which modules become units, whose parameters are gathered and freed together."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Union

import torch
from torch.utils._pytree import tree_map

from . import _core
from ._options import options_of
from .errors import InvalidArgumentError

# What fully_shard() takes: see there.
Units = Union[
    None, str, type, Sequence[str], Sequence[type],
    Callable[[str, torch.nn.Module], Union[bool, "_core.UnitOptions"]]]


def MixedPrecision(param_dtype: torch.dtype | None = None,
                   reduce_dtype: torch.dtype | None = None,
                   buffer_dtype: torch.dtype | None = None,
                   cast_forward_inputs: bool = True,
                   keep_low_precision_grads: bool = False) -> _core.MixedPrecision:
    """Dtypes of a unit: torch.float32, torch.bfloat16 or torch.float16; None keeps
    the module's. Parameters are used in `param_dtype`, gradients are sent in
    `reduce_dtype` and added up in fp32; shards and optimizer state stay in the
    module's dtype. Mirrors torch.distributed.fsdp.MixedPrecisionPolicy."""
    return options_of(
        _core.MixedPrecision, param_dtype=param_dtype, reduce_dtype=reduce_dtype,
        buffer_dtype=buffer_dtype, cast_forward_inputs=cast_forward_inputs,
        keep_low_precision_grads=keep_low_precision_grads)


def UnitOptions(name: str | None = None, own_unit: bool = True,
                mixed_precision: _core.MixedPrecision | None = None,
                output_dtype: torch.dtype | None = None,
                keep_whole: bool = False) -> _core.UnitOptions:
    """What a policy may return for a module. Modules of equal `name` are one unit;
    with ``own_unit=False`` the module stays in the unit around it, with its own
    mixed precision; `keep_whole` mirrors reshard_after_forward=False."""
    return options_of(
        _core.UnitOptions, name=name, own_unit=own_unit,
        mixed_precision=mixed_precision, output_dtype=output_dtype,
        keep_whole=keep_whole)


def _child_of_list(root):
    lists = (torch.nn.ModuleList, torch.nn.Sequential)
    children = {id(child) for module in root.modules() if isinstance(module, lists)
                for child in module.children()}
    return lambda name, module: id(module) in children


def _by_pattern(patterns):
    # `*` does not cross a dot, as in sherd::units::by_name().
    texts = ["".join({"*": "[^.]*", "?": "[^.]"}.get(c, re.escape(c))
                     for c in pattern) for pattern in patterns]
    return lambda name, module: any(re.fullmatch(text, name) for text in texts)


def _modules_around(name):
    return [name[:dot.start()] for dot in re.finditer(r"\.", name)]


def _is_ignored(patterns):
    """Whether a name is ignored, or that of a module around it."""
    takes = _by_pattern(patterns)
    return lambda name: any(takes(one, None) for one in [*_modules_around(name), name])


def _policy(root, units):
    """A function of a name and a module."""
    if units is None:
        return _child_of_list(root)
    if isinstance(units, str):
        return _by_pattern([units])
    if isinstance(units, type):
        return lambda name, module: isinstance(module, units)
    if isinstance(units, (list, tuple, set, frozenset)):
        items = tuple(units)
        if not items:
            return lambda name, module: False
        if all(isinstance(item, str) for item in items):
            return _by_pattern(items)
        if all(isinstance(item, type) for item in items):
            return lambda name, module: isinstance(module, items)
    elif callable(units):
        return units
    raise InvalidArgumentError(
        "[python] units: expected None, a pattern of names, a class, several of "
        "either, or a function of a name and a module, found " + repr(units))


def named_units(root, units):
    """UnitOptions by the name of each module that becomes a unit. `units`: see
    fully_shard()."""
    policy = _policy(root, units)
    named = {}
    for name, module in root.named_modules(remove_duplicate=False):
        answer = policy(name, module)
        if isinstance(answer, _core.UnitOptions):
            named[name] = answer
        elif answer:
            named[name] = _core.UnitOptions()
    asked_for_none = isinstance(units, Collection) and not units
    if not named and units is not None and not asked_for_none:
        names = [name for name, _ in root.named_modules() if name][:8]
        raise InvalidArgumentError(
            f"[python] units: expected some that take a module, found {units!r}, "
            f"which takes none of {', '.join(names)}, ...; [] makes one unit of all")
    return named


def _cast_to(dtype):
    def cast(value):
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    return lambda values: tree_map(cast, values)


class InputCasts:
    """Whether units cast their inputs: not inside a scope of full precision. A plain
    bool, since torch.compile cannot trace a question to the core."""

    def __init__(self):
        self.are_on = True
        self._scopes = 0

    def count(self, opened):
        """Called with 1 where such a scope is opened, and with -1 where it ends."""
        self._scopes += opened
        self.are_on = self._scopes == 0


class FullPrecisionScope:
    """A scope of the core in which inputs are not cast. It may be used again."""

    def __init__(self, scope, casts):
        self._scope, self._casts, self._is_open = scope, casts, False

    def _set_open(self, is_open):
        if is_open != self._is_open:
            self._is_open = is_open
            self._casts.count(1 if is_open else -1)

    def __enter__(self):
        self._scope.__enter__()
        self._set_open(True)

    def __exit__(self, *raised):
        self._set_open(False)
        self._scope.__exit__(*raised)

    def __del__(self):
        self._set_open(False)  # The core's scope ends as well.


class FullPrecisionSummon(FullPrecisionScope):
    """The core's summon scope, which is open from the start."""

    def __init__(self, scope, casts):
        super().__init__(scope, casts)
        self._set_open(True)

    def __enter__(self):
        return self

    def tensor(self, name):
        return self._scope.tensor(name)

    def gradient(self, name):
        return self._scope.gradient(name)

    def close(self):
        self._set_open(False)
        self._scope.close()


def _cast_inputs(module, dtype, casts):
    cast = _cast_to(dtype)

    def hook(_module, args, kwargs):
        return (cast(args), cast(kwargs)) if casts.are_on else None

    return module.register_forward_pre_hook(hook, prepend=True, with_kwargs=True)


def _cast_outputs(module, dtype, _casts):
    cast = _cast_to(dtype)
    return module.register_forward_hook(lambda module, inputs, outputs: cast(outputs))


def _input_dtype(name, module, named, precision):
    """The dtype that a unit's forward takes its floating-point inputs in, or None."""
    options = named.get(name, UnitOptions(own_unit=not name))
    own = options.mixed_precision or (precision if options.own_unit else None)
    # These keep their dtype, and a script has no hooks.
    kept = getattr(module, "running_mean", None) is not None
    if own is None or not own.cast_forward_inputs or kept or isinstance(
            module, torch.jit.ScriptModule):
        return None
    return own.param_dtype


def forward_casts(root, named, precision, ignored):
    """Options without output_dtype, and what registers the hooks that cast inputs and
    outputs of units as FSDP2 does, to be called with InputCasts once it is sharded. In C++,
    which has no such hooks, the engine casts what operators take and return. `ignored`: see
    fully_shard()."""
    options, hooks = dict(named), []
    is_ignored = _is_ignored(ignored)
    with_parameters = {""}  # A module without sharded parameters is no unit.
    for name, _ in root.named_parameters(remove_duplicate=False):
        if not is_ignored(name):
            with_parameters.update(_modules_around(name))
    for name, module in root.named_modules(remove_duplicate=False):
        if is_ignored(name):
            continue
        dtype = _input_dtype(name, module, named, precision)
        if dtype and name in with_parameters:
            hooks.append(partial(_cast_inputs, module, dtype))
        one = named.get(name)
        if one is not None and one.output_dtype is not None:
            hooks.append(partial(_cast_outputs, module, one.output_dtype))
            options[name] = UnitOptions(
                one.name, one.own_unit, one.mixed_precision, None, one.keep_whole)
    return options, hooks
