# SPDX-License-Identifier: Apache-2.0
"""Communication hooks, which replace the mean of gradients over ranks.

    handle = sherd.replicate(model, hook=sherd.hooks.compress(torch.bfloat16))

    def sign(bucket, group):                     # One of your own.
        bucket.gradients.sign_()
        group.all_reduce_mean(bucket.gradients)
    handle = sherd.replicate(model, hook=sign)

A function gets one bucket after another on a thread beside backward, and leaves in
``bucket.gradients`` what all ranks agree on. A bucket has ``index``, ``last``,
``step``, ``gradients`` (1-D), ``parameters`` (name and gradient of each) and
``cuts``; a group ``rank``, ``size``, ``all_reduce_mean(tensor, ranks=None)``,
``reduce_scatter_mean(tensor, cuts)`` and ``all_gather(tensor)``. Every rank makes the
same calls in the same order. A function that reduces to shards says so by an attribute
``reduces_to_shards = True``, and one whose results differ between ranks, so that models
drift apart, by ``keeps_models_equal = False``. Mirrors sherd/ddp/comm_hook.h;
docs/guide/hooks.md.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Union

import torch

from . import _core
from ._options import options_of
from .errors import InvalidArgumentError

Hook = Union[None, "_core.CommHook", Callable[[Any, Any], None]]


def all_reduce_mean() -> _core.CommHook:
    """The mean, as without a hook; a building block for others."""
    return _core.all_reduce_mean()


def compress(dtype: torch.dtype, inner: Hook = None) -> _core.CommHook:
    """Sends gradients as torch.bfloat16 or torch.float16, by `inner` if there is one.
    Mirrors bf16_compress_hook, fp16_compress_hook and their wrappers."""
    return _core.compress(dtype, comm_hook(inner))


def quantise(scale: str = "channel", error_feedback: bool = True) -> _core.CommHook:
    """Sends gradients as int8 with fp32 scales: one for each index of a parameter's first
    dimension ("channel"), or one for each parameter ("tensor"). error_feedback: adds the
    rounding error to the next gradient, for a copy of all gradients in fp32. Mirrors
    quantization_pertensor_hook and quantization_perchannel_hook."""
    return _core.quantise(options_of(
        _core.QuantiseOptions, scale=scale, error_feedback=error_feedback))


def power_sgd(rank: int = 1, start_step: int = 10, compression_min: float = 2.0,
              error_feedback: bool = True, warm_start: bool = True,
              batched: bool = False, seed: int = 0) -> _core.CommHook:
    """Sends a matrix of n x m as (n + m) * rank numbers, from backward `start_step` on. A
    matrix that would not become `compression_min` times smaller is sent uncompressed.
    error_feedback: adds the error to the next gradient, for a copy of all compressed gradients
    in fp32. warm_start: starts from the last approximation. batched: treats each bucket as one
    matrix. Mirrors powerSGD_hook and, with `batched`, batched_powerSGD_hook."""
    return _core.power_sgd(options_of(
        _core.PowerSgdOptions, rank=rank, start_step=start_step,
        compression_min=compression_min, error_feedback=error_feedback,
        warm_start=warm_start, batched=batched, seed=seed))


def post_local_sgd(start_step: int = 100, group_size: int = 1) -> _core.CommHook:
    """The mean over all ranks before backward `start_step`, and from then on over
    groups of neighbours; handle.average_parameters() makes models equal again.
    Mirrors post_localSGD_hook."""
    return _core.post_local_sgd(options_of(
        _core.PostLocalSgdOptions, start_step=start_step, group_size=group_size))


def quantise_gathers(block: int = 256) -> _core.GatherHook:
    """When units are gathered, shards are sent as int8 with one fp32 scale per `block`
    elements: ``fully_shard(model, gather_hook=quantise_gathers())``. Forward and backward use
    the rounded values, optimizers and checkpoints the shards. Mirrors DeepSpeed's
    zero_quantized_weights."""
    return _core.quantise_gathers(block)


def _name_of(function):
    return getattr(function, "__qualname__", type(function).__qualname__)


def _function_hook(function, reduce, reduces_to_shards):
    """A hook that calls `reduce` and has the name and attributes of `function`."""
    return _core.function_hook(
        _name_of(function), reduce, reduces_to_shards=bool(reduces_to_shards),
        keeps_models_equal=bool(getattr(function, "keeps_models_equal", True)))


def comm_hook(hook: Hook) -> _core.CommHook | None:
    """What options take for a hook or a function."""
    if hook is None or isinstance(hook, _core.CommHook):
        return hook
    if not callable(hook):
        raise InvalidArgumentError(
            "[python] hook: expected one of sherd.hooks, or a function of a bucket and "
            f"a group, found a {type(hook).__name__}")
    return _function_hook(hook, hook, getattr(hook, "reduces_to_shards", False))


class HookOf:
    """The hook of a handle, and what it remembers in checkpoints: of each rank of the
    mesh's replicate axis its own."""

    def __init__(self, hook, mesh):
        self._hook, self._mesh = hook, mesh

    def add_to(self, state):
        """Adds all there is to a CheckpointState. Collective."""
        if self._hook is not None:
            _core.add_hook_state(state, self._hook.state(), self._mesh)

    def name(self):
        """That of a hook which remembers something; else None."""
        return self._hook.name if self._hook is not None and self._hook.state() else None

    def prepare(self, state, tensors, name):
        """Adds tensors to `state` that receive the hook state of a checkpoint with these
        `tensors`, and returns a function that restores the hook once they are loaded. `name`:
        the hook that the checkpoint names; None if a C++ program saved it. Collective."""
        mine = None if self._hook is None else self._hook.name
        if mine is None or name not in (None, mine) or not (name or self.name()):
            return lambda: None
        room = _core.room_for_hook_state(tensors, self._mesh)
        if not room:
            return lambda: None  # None there, or that of other ranks.
        _core.add_hook_state(state, room, self._mesh)
        return lambda: self._hook.load(room)


class _TorchBucket:
    """A bucket with the methods of torch.distributed.GradBucket."""

    def __init__(self, bucket, parameters):
        self._bucket, self._parameters = bucket, parameters
        self._buffer = bucket.gradients

    def index(self):
        return self._bucket.index

    def is_last(self):
        return self._bucket.last

    def buffer(self):
        return self._buffer

    def set_buffer(self, tensor):
        self._buffer = tensor

    def gradients(self):
        return [gradient for _, gradient in self._bucket.parameters]

    def parameters(self):
        return [self._parameters[name] for name, _ in self._bucket.parameters]


def torch_hook(module: torch.nn.Module, state: Any,
               hook: Callable[[Any, Any], Any]) -> _core.CommHook:
    """A hook with the arguments of DistributedDataParallel.register_comm_hook()."""
    if not callable(hook):
        raise InvalidArgumentError(
            "[python] register_comm_hook: expected a function of a state and a "
            f"bucket, which must be callable, found a {type(hook).__name__}")
    kept = weakref.ref(module)  # Which keeps its handle, and that this hook.

    def reduce(bucket, _group):
        parameters = dict(kept().named_parameters())
        result = hook(state, _TorchBucket(bucket, parameters))
        # That of a process group is no torch.futures.Future.
        if isinstance(result, torch._C.Future):  # pylint: disable=protected-access
            result = result.wait()
        if isinstance(result, (list, tuple)):
            result = result[0]
        if not isinstance(result, torch.Tensor):
            raise InvalidArgumentError(
                "[python] expected a hook that returns a tensor or a future of one, "
                f"found one that returns a {type(result).__name__}")
        if result.data_ptr() != bucket.gradients.data_ptr():
            bucket.gradients.copy_(result.view_as(bucket.gradients))
    return _function_hook(hook, reduce, False)


__all__ = ["all_reduce_mean", "compress", "post_local_sgd", "power_sgd", "quantise",
           "quantise_gathers"]
