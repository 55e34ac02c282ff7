# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in folders of safetensors files, which C++ programs and the `sherd`
command read and write, too: docs/guide/checkpoints.md."""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import io
import json
import os
import pickle
from typing import Any

import torch

from . import _core, _slices, optimizer_state
from ._handles import check_handle
from ._optimizers import SECTION, state_of
from ._together import described, kind_of, of_rank0, on_every_rank, same_call
from ._tree import checkpoint_tree, persistent_buffers
from .errors import InvalidArgumentError, UnavailableError
from .optim import WeightAverage
from .state import (
    check_parts, own_if_empty, placed, set_extra_state, wait_for_readers, with_extra_state)

_OPTIMIZER = "sherd.optimizer"  # Names of values.
_HOOK = "sherd.hook"
_EXTRA = "sherd.extra_state"
_AVERAGE = "ema"  # The section of averages.
# Sections of sherd's own that are no optimizer's.
_OTHER_SECTIONS = {"model", "hook", "generators", "scaler", "tensors", _AVERAGE}
# In the words of safetensors.
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
           "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
           "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
           "BOOL": torch.bool, "U64": torch.uint64, "U32": torch.uint32,
           "U16": torch.uint16}


@dataclasses.dataclass
class LoadReport:
    """What load() has read. `values` are rank 0's texts of save()."""
    folder: str
    step: int
    world_size: int  # The one that saved it.
    values: dict
    missing: list    # "SECTION NAME" each, without `strict`.
    unexpected: list


class CheckpointSaver:
    """Saves into a folder that belongs to one run at a time: step 100 becomes
    FOLDER/step-100 by one rename, once all of it is on the disk.

    handle: of fully_shard() or replicate(). optimizer: as for optimizer_state_dict().
    asynchronous: tensors are copied, and written by a thread beside training.
    keep_last, keep_every: after each save, all checkpoints are removed except the newest
    `keep_last` and those whose step is a multiple of `keep_every`. With keep_last=0 none is
    removed; with keep_every=0 no step is exempt. shared: other jobs save into the folder, too.
    generators: torch.Generator by name, of which each rank has its own.
    average: a WeightAverage of the handle's parameters.

    Collective, as are all its methods except saving(). Raises sherd.Error, on every rank, if the
    folder cannot be made or another run is using it. Mirrors sherd::CheckpointSaver.
    """

    def __init__(self, folder, handle, optimizer=None, *, generators=None,
                 average=None, asynchronous=False, keep_last=0, keep_every=0, shared=False,
                 file_bytes_max=4 << 30):
        check_handle(handle)
        self._handle, self._optimizer = handle, optimizer
        self._generators, self._average = generators, average
        world = handle.mesh.world
        with same_call(world, "sherd.CheckpointSaver()"):
            self._core = _core.CheckpointSaver(
                world, os.fspath(folder), asynchronous, keep_last, keep_every, shared,
                file_bytes_max)

    def save(self, step: int, values: dict[str, str] | None = None) -> None:
        """Saves a checkpoint, between two steps; replaces one of the same step.
        `values`: texts by name, of which rank 0's are saved. Raises sherd.Error, on every rank,
        if any rank failed; the previous checkpoint is still there then."""
        call = _call("CheckpointSaver.save", self._optimizer, self._average, step=step)
        with same_call(self._handle.mesh.world, call):
            state = _state_of(self._handle, self._optimizer, self._generators,
                              self._average, values)
            self._core.save(step, state)

    def wait(self) -> None:
        """Waits until the last save is complete; raises what it failed with."""
        self._core.wait()

    def saving(self) -> bool:
        """Whether this rank still writes its part of an asynchronous save."""
        return self._core.saving()

    def newest(self) -> str | None:
        """The folder of the newest complete checkpoint, or None."""
        return self._core.newest()


def save(folder: str | os.PathLike, step: int, handle, optimizer: Any = None,
         values: dict[str, str] | None = None, **options: Any) -> None:
    """Saves FOLDER/step-STEP: parameters, persistent buffers, extra state of modules, the state
    of an optimizer and what a hook of sherd.hooks remembers. Collective, between two steps.
    `options` are CheckpointSaver's.

        sherd.save("run/checkpoints", step, handle, optimizer, {"loss": str(loss)})
        report = sherd.load("run/checkpoints", handle, optimizer)
    """
    check_handle(handle)
    call = _call("sherd.save", optimizer, options.get("average"), step=step)
    with same_call(handle.mesh.world, call):
        saver = CheckpointSaver(folder, handle, optimizer, **options)
        try:
            saver.save(step, values)
            saver.wait()
        finally:
            # The traceback of an error keeps the saver, which must not keep its folder.
            saver._core = None  # pylint: disable=protected-access


def load(folder: str | os.PathLike, handle, optimizer: Any = None, *,
         step: int | None = None, strict: bool = True,
         generators: dict[str, torch.Generator] | None = None,
         average: WeightAverage | None = None) -> LoadReport | None:
    """Loads the newest checkpoint in `folder` that can be read, or that of `step`,
    and publishes; returns a LoadReport, or None where there is no checkpoint.
    Collective. Any number of ranks, units, strategy or program may have saved it.
    Optimizers of torch.optim also get their hyperparameters, where Python saved them.

    Raises sherd.Error, on every rank, for other shapes, the state of another
    optimizer, a folder in which none can be read and, if `strict`, for names that
    only one side has. What was read before such an error stays. Without `strict`,
    what the checkpoint does not have stays as it is, and an `average` that it does not have
    begins again with the weights. The state of another communication hook,
    or of a hook on another set of ranks, is not used, and is listed in `unexpected`.
    """
    check_handle(handle)
    reports = []

    def load_one(path):
        found, report = _load_one(
            path, handle, optimizer, strict, generators, average)
        reports.append(report)
        return found

    call = _call("sherd.load", optimizer, average, step=step, strict=strict)
    with same_call(handle.mesh.world, call):
        wait_for_readers(handle)
        if step is not None:
            load_one(os.path.join(folder, f"step-{step}"))
        else:
            _core.load_newest_checkpoint(
                handle.mesh.world, os.fspath(folder), load_one)
    return reports[-1] if reports else None


def _call(name, optimizer, average, **arguments):
    kind = None if average is None else type(average).__name__
    return described(name, optimizer=kind_of(optimizer), average=kind, **arguments)


def _base_state(handle, generators, average):
    check_parts(handle)
    state = _core.CheckpointState()
    state.add_parameters(handle.core_parameters)
    state.add_buffers(checkpoint_tree(handle.module))
    state.add_tensors("model", ignored_parameters(handle), True)
    for name, generator in (generators or {}).items():
        state.add_generator(name, generator)
    if average is not None:
        state.add_averages(average)
    return state


def ignored_parameters(handle):
    """(name, tensor) of the parameters that the handle leaves alone or that have no
    elements, without those that another handle has sharded and saves."""
    managed = {name for name, _, _ in placed(handle)}
    return [(name, own_if_empty(tensor)) for name, tensor in handle.module.named_parameters()
            if name not in managed and _slices.owner_of(tensor) in (None, handle)]


def _described(options):
    """Hyperparameters that JSON can hold."""
    def plain(value):
        if isinstance(value, torch.Tensor):
            return value.item()
        return list(value) if isinstance(value, tuple) else value
    kept = (str, bool, int, float, list, type(None))
    return {key: plain(value) for key, value in options.items()
            if isinstance(plain(value), kept)}


def _check_values(values):
    if not isinstance(values, collections.abc.Mapping):
        raise InvalidArgumentError(
            "[python] values: expected a dictionary of texts by name, found a "
            f"{type(values).__name__}")
    for name, text in values.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidArgumentError(
                f"[python] values: expected texts by name, found {name!r}: {text!r}")
        if name.startswith("sherd."):
            raise InvalidArgumentError(
                "[python] values: expected names that do not begin with 'sherd.', which "
                f"are sherd's own, found {name!r}")


def _state_of(handle, optimizer, generators, average, values):
    world, texts = handle.mesh.world, {}
    mine = None
    if name := handle.hook_of.name():
        texts[_HOOK] = name
    if optimizer is not None:
        mine = on_every_rank(world, lambda: state_of(handle, optimizer))
        names = optimizer_state.named_groups(handle, mine)
        texts[_OPTIMIZER] = json.dumps([
            _described(options) | {"params": of_group}
            for options, of_group in zip(mine.options(), names)])

    def make():
        _check_values({} if values is None else values)
        extra = {key: owner.get_extra_state()
                 for key, owner in with_extra_state(handle.module).items()}
        if extra and world.rank == 0:
            texts[_EXTRA] = json.dumps(
                {key: _extra_text(key, value) for key, value in extra.items()})
        state = _base_state(handle, generators, average)
        if mine is not None:
            mine.add_to(state)
        state.values = dict(values or {}) | texts
        return state
    state = on_every_rank(world, make)
    handle.hook_of.add_to(state)
    return state


def _reason(error):
    """What torch.load() found, in one line."""
    return str(error).rpartition("WeightsUnpickler error: ")[2].split("\n", maxsplit=1)[0]


def _extra_text(key, value):
    """Extra state of a module as a text that is read without running code."""
    written = io.BytesIO()
    try:
        torch.save(value, written)
        torch.load(io.BytesIO(written.getvalue()), weights_only=True)
    except (pickle.PickleError, AttributeError, NotImplementedError, RuntimeError,
            TypeError) as error:
        raise InvalidArgumentError(
            f"[python] {key}: expected extra state that torch.load(weights_only=True) reads: "
            "tensors, numbers, texts, and lists, tuples and dictionaries of those, or objects "
            "of classes given to torch.serialization.add_safe_globals(), found a "
            f"{type(value).__name__}: {_reason(error)}") from error
    return base64.b64encode(written.getvalue()).decode()


def _saved_extra(path, values):
    """The extra state of modules by key; None where the checkpoint keeps none."""
    try:
        saved = json.loads(values.get(_EXTRA, "null"))
        return saved and {
            key: torch.load(io.BytesIO(base64.b64decode(text)), map_location="cpu",
                            weights_only=True)
            for key, text in saved.items()}
    except (AttributeError, EOFError, RuntimeError, TypeError, ValueError,
            pickle.PickleError) as error:
        raise InvalidArgumentError(
            f"[python] {path}: expected extra state of modules that torch.load(weights_only="
            f"True) reads as value {_EXTRA!r}, found {type(error).__name__}: {_reason(error)}"
        ) from error


def _saved_groups(path, values):
    """The parameter groups that were saved, or None."""
    try:
        groups = json.loads(values.get(_OPTIMIZER, "null"))
        for group in groups or []:
            if not all(isinstance(name, str) for name in group["params"]):
                raise TypeError("a name that is no text")
        return groups
    except (KeyError, TypeError, ValueError) as error:
        raise UnavailableError(
            f"[python] {path}: expected the parameter groups of an optimizer as value "
            f"{_OPTIMIZER!r}, found {type(error).__name__}: {error}") from error


def _restored(group, mine):
    """Hyperparameters as _described() took them; JSON has no tuples, which ours has."""
    return {key: tuple(value) if isinstance(value, list) and isinstance(mine.get(key), tuple)
            else value for key, value in group.items()}


def _restored_groups(mine, names, groups, strict):
    """Without `strict`, nothing for a group that has no name of ours."""
    return [_restored(group, ours) if strict or set(group["params"]) & set(of_group) else {}
            for ours, of_group, group in zip(mine.options(), names, groups)]


def _content(path):
    """Tensors and values; load_newest_checkpoint() tries another where it is damaged."""
    try:
        return _core.checkpoint_content(path)
    except InvalidArgumentError as error:
        raise UnavailableError(str(error)) from error


def _load_one(path, handle, optimizer, strict, generators, average):
    world = handle.mesh.world
    tensors, values = of_rank0(world, lambda: _content(path))
    groups = _saved_groups(path, values)
    extra = on_every_rank(world, lambda: _saved_extra(path, values))
    state = on_every_rank(world, lambda: _base_state(handle, generators, average))
    on_every_rank(world, lambda: _check_names(handle, path, tensors, extra, strict))
    without = on_every_rank(
        world, lambda: _missing_generators(generators or {}, path, tensors, strict))
    begins_again = average is not None and not on_every_rank(
        world, lambda: _has_averages(average, path, tensors, strict))
    mine = None
    if optimizer is not None:
        mine = on_every_rank(world, lambda: state_of(handle, optimizer))
        names = optimizer_state.named_groups(handle, mine)
        on_every_rank(world, lambda: _choose_sections(mine, path, tensors))
        saved = _of_optimizer(mine, tensors)
        on_every_rank(
            world, lambda: _check_optimizer(mine, names, groups, saved, strict))
        mine.prepare(saved)
        if not strict:
            mine.keep_others(saved)
        on_every_rank(world, lambda: mine.add_to(state))
    restore_hook = handle.hook_of.prepare(state, tensors, values.get(_HOOK))
    found = _core.load_checkpoint(world, path, state, not strict)
    on_every_rank(world, restore_hook)
    if begins_again:
        average.reset()
    if mine is not None:
        mine.finish()
        if groups is not None:
            mine.set_options(_restored_groups(mine, names, groups, strict))
    lacks, knows_not = on_every_rank(world, lambda: _set_extra(handle, extra))
    texts = {name: text for name, text in values.items()
             if name not in (_OPTIMIZER, _HOOK, _EXTRA)}
    return found, LoadReport(found.folder, found.step, found.world_size, texts,
                             found.missing + without + lacks, found.unexpected + knows_not)


def _set_extra(handle, saved):
    """Returns what of a checkpoint with extra state only one side has."""
    if saved is None:
        return [], []
    mine = with_extra_state(handle.module)
    set_extra_state(handle.module,
                    {key: value for key, value in saved.items() if key in mine})
    return ([f"model {key}" for key in mine if key not in saved],
            [f"model {key}" for key in saved if key not in mine])


def _missing_generators(generators, path, tensors, strict):
    """Those of which the checkpoint has no state; fewer ranks may have saved it."""
    saved = {name.rpartition(".rank-")[0] for section, name, _, _ in tensors
             if section == "generators"}
    missing = [name for name in generators if name not in saved]
    if strict and missing:
        raise InvalidArgumentError(
            f"[python] {path}: expected the state of the generators, found none of "
            f"{', '.join(missing)}; without them, or with strict=False, the rest is loaded")
    return [f"generators {name}" for name in missing]


def _check_names(handle, path, tensors, extra, strict):
    """Sections that nobody asked for are no mistake."""
    ours = {name for name, _, _ in placed(handle)}
    ours |= {name for name, _ in ignored_parameters(handle)}
    ours |= {name for name, _ in persistent_buffers(handle.module)}
    saved = {name for section, name, _, _ in tensors if section == "model"}
    if extra is not None:  # Others keep none.
        ours |= set(with_extra_state(handle.module))
        saved |= set(extra)
    for names, text in ((ours - saved, "all that the module has, found no"),
                        (saved - ours, "nothing that the module lacks, found")):
        if strict and names:
            some = sorted(names)[:8]
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            raise InvalidArgumentError(
                f"[python] {path}: expected {text} {', '.join(some)}{more}")


def _has_averages(average, path, tensors, strict):
    """Whether the checkpoint has all averages."""
    saved = {name for section, name, _, _ in tensors if section == _AVERAGE}
    missing = sorted(set(average.tensors()) - saved)
    if strict and missing:
        raise InvalidArgumentError(
            f"[python] {path}: expected averages of the weights, found none of {missing[0]}; "
            "without `average` the rest is loaded, and with strict=False the average begins "
            "again with the weights")
    return not missing


def _optimizer_sections(tensors):
    """Those with the state of an optimizer of any program: every name is a key and a
    parameter's."""
    parameters = {name for section, name, _, _ in tensors if section == "model"}
    fits = {}
    for section, name, _, _ in tensors:
        if section not in _OTHER_SECTIONS:
            of_parameter = name.partition(".")[2] in parameters
            fits[section] = fits.get(section, True) and of_parameter
    return sorted(section for section, all_fit in fits.items() if all_fit)


def _choose_sections(mine, path, tensors):
    """Which sections of the checkpoint are those of our optimizers: the one that Python
    writes, else the only one, else those with the names of our optimizers."""
    if any(section == SECTION for section, *_ in tensors):
        return
    found = _optimizer_sections(tensors)
    if len(found) == 1:
        mine.sections = found * len(mine.sections)
    elif found:
        if sorted(map(str, mine.called)) != found:
            raise InvalidArgumentError(
                f"[python] {path}: expected the state of one optimizer, or a dictionary "
                "with an optimizer for each of them under its name, found the states "
                f"{', '.join(found)}, and {', '.join(map(repr, mine.called))} to load")
        mine.sections = [str(name) for name in mine.called]


def _check_optimizer(mine, names, groups, saved, strict):
    keys = {}
    for name, key, _, _ in saved:
        keys.setdefault(name, set()).add(key)
    if strict and not keys and groups is None:
        raise InvalidArgumentError(
            "[python] expected a checkpoint with the state of an optimizer, found none "
            "in it; without `optimizer`, or with strict=False, the rest is loaded")
    others = set(keys) - {name for of_group in names for name in of_group}
    others -= optimizer_state.frozen_and_without_state(mine.handle, keys)
    if strict and others:
        raise InvalidArgumentError(
            "[python] expected the state of parameters that the optimizer has, found "
            f"that of {', '.join(sorted(others)[:8])}")
    if groups is not None:
        optimizer_state.check_groups(mine, names, groups, keys, strict)
    optimizer_state.check_keys(mine, names, keys)


def _of_optimizer(mine, tensors):
    """(name, key, dtype, whether one number) of a checkpoint's."""
    result = []
    for section, name, dtype, shape in tensors:
        if section in mine.sections and "." in name:
            key, parameter = name.split(".", 1)
            result.append((parameter, key, _DTYPES[dtype], not shape))
    return result
