# SPDX-License-Identifier: Apache-2.0
"""The arguments of a session, before it is made."""

import ctypes
import hashlib

import torch

from ._optimizers import _OURS
from ._together import gathered
from .errors import InvalidArgumentError
from .optim import GradScaler, WeightAverage

_TIMEOUT_MAX = 1e6  # Seconds; that of SHERD_TIMEOUTS.


def named(optimizer):
    """Optimizers by name."""
    return optimizer if isinstance(optimizer, dict) else {"optimizer": optimizer}


def _expect(is_right, what, expected, found):
    if not is_right:
        raise InvalidArgumentError(
            f"[python] Session: {what}: expected {expected}, found {found}")


def _kind(value):
    return "None" if value is None else f"a {type(value).__name__}"


def check_arguments(update, scaler, average, tensors):
    """Raises where one is of another type."""
    _expect(update is None or callable(update), "update",
            "a function of the step number", _kind(update))
    _expect(isinstance(scaler, GradScaler | None), "scaler", "a sherd.GradScaler", _kind(scaler))
    _expect(isinstance(average, WeightAverage | None), "average", "a sherd.WeightAverage",
            _kind(average))
    _expect(isinstance(tensors, dict | None), "tensors", "a dictionary of tensors by name",
            _kind(tensors))
    for name, tensor in (tensors or {}).items():
        _expect(isinstance(name, str) and isinstance(tensor, torch.Tensor), "tensors",
                "a dictionary of tensors by name", f"{_kind(tensor)} under {name!r}")


def check_saves(checkpoints, save_every, keep_last):
    """Raises where these are no numbers, or need a folder that is not given."""
    for name, value in (("save_every", save_every), ("keep_last", keep_last)):
        _expect(isinstance(value, int) and value >= 0, name, "a number, 0 or more", repr(value))
    _expect(checkpoints or not save_every, "checkpoints",
            f"a folder, as save_every is {save_every}", repr(checkpoints))


def check_optimizers(optimizers):
    """Raises unless these are optimizers by name, each of them once."""
    if not optimizers:
        raise InvalidArgumentError("[python] Session: expected an optimizer, found none")
    names = {}
    for name, optimizer in optimizers.items():
        _expect(isinstance(optimizer, (torch.optim.Optimizer, *_OURS)), "optimizer",
                "one of sherd or torch.optim, or a dictionary of several by name",
                _kind(optimizer))
        _expect(isinstance(name, str), "optimizer", "names that are texts", repr(name))
        first = names.setdefault(id(optimizer), name)
        _expect(first == name, "optimizer", "each optimizer once",
                f"the same under the names {first!r} and {name!r}")


def check_options(options):
    """Raises where a number makes no sense."""
    for name in ("digest_every", "sums_kept"):
        value = getattr(options, name)
        _expect(value >= 0, name, "0 or more steps", value)


def check_timeout(name, seconds):
    """Raises for a number that is no time; C++ would make any time of it."""
    is_number = isinstance(seconds, (int, float))
    _expect(not is_number or 0 < seconds <= _TIMEOUT_MAX, f"timeouts[{name!r}]",
            f"seconds above 0 and at most {_TIMEOUT_MAX:.0f}", seconds)


def _described(tensor):
    """What must be the same on every rank."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    values = plain.view(-1).view(torch.uint8)
    size = values.numel()
    read = (ctypes.c_char * size).from_address(values.data_ptr()) if size else b""
    return [str(tensor.dtype), list(tensor.shape), hashlib.sha256(read).hexdigest()]


def _words(described):
    return "none" if described is None else (
        f"one of shape {tuple(described[1])} and {described[0]}")


def check_alike(world, tensors):
    """Raises on every rank where `tensors` differ between ranks: a checkpoint takes each from
    some rank. Collective."""
    ranks = gathered(world, {name: _described(tensor) for name, tensor in tensors.items()})
    for rank, theirs in enumerate(ranks):
        for name in sorted(ranks[0].keys() | theirs.keys()):
            first, other = ranks[0].get(name), theirs.get(name)
            if first == other:
                continue
            alike = first and other and first[:2] == other[:2]
            raise InvalidArgumentError(
                "[python] Session: tensors: expected them to be whole and equal on every rank "
                f"of the replica, found for {name!r} {_words(first)} on rank 0 and "
                f"{'other values' if alike else _words(other)} on rank {rank}")
