# SPDX-License-Identifier: Apache-2.0
"""Distributed data parallel training of an unmodified torch.nn.Module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _backward, _core
from ._handles import handles, refuse_join
from ._options import names_of, options_of
from ._together import same_call
from ._tree import SharedBuffers, check_module, module_tree
from .errors import FailedPreconditionError, InvalidArgumentError
from .hooks import Hook, HookOf, comm_hook, torch_hook
from .world import Where, mesh_of


_KEPT = "_sherd_replica"  # An attribute of modules.


class _Kept:
    """Keeps the handle as long as its module. Copies of the module have none."""

    def __init__(self, handle):
        self.handle = handle

    def __reduce_ex__(self, protocol):
        return type(None), ()


class DistributedDataParallel:
    """The handle of a replicated module, made by replicate(). The module keeps it
    alive; after close() the module is a plain one again. Any optimizer over
    ``module.parameters()`` serves. Mirrors sherd::DistributedDataParallel."""

    def __init__(self, module: torch.nn.Module, core, mesh, buffers, hook) -> None:
        self.module = module
        self.hook_of = HookOf(hook, mesh)  # For checkpoints.
        self.mesh = mesh
        self._core = core
        self._buffers = buffers  # Followed as long as this lives.
        _backward.buffers.add(buffers)
        handles.add(self)

    def no_sync(self) -> AbstractContextManager:
        """Backwards in this scope add to ``.grad`` and exchange nothing; the next
        one outside averages. Mirrors DistributedDataParallel.no_sync()."""
        return self._core.no_sync()

    def join(self, after_backward: Callable[[], Any] | None = None, *,
             divide_by_initial_world_size: bool = True,
             throw_on_early_termination: bool = False) -> AbstractContextManager:
        """A scope around a loop over inputs whose number differs between ranks. At its end, a
        rank takes part in the backwards of the ranks that still have inputs, and calls
        `after_backward`, if it is not None, after each of them. Finally every rank gets the
        parameters of the last rank that had inputs. Mirrors sherd::JoinScope and
        torch.distributed.algorithms.Join."""
        return self._core.join(after_backward, divide_by_initial_world_size,
                               throw_on_early_termination)

    def join_hook(self, **_: Any) -> Any:
        """Raises: what torch.distributed.algorithms.Join would call."""
        refuse_join()

    def register_comm_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        """From now on ``hook(state, bucket)`` reduces gradients, on a thread beside
        backward. A bucket has the methods of torch.distributed.GradBucket, and the hook returns
        a tensor or a future of one, so that the hooks of
        torch.distributed.algorithms.ddp_comm_hooks can be used; they communicate over a process
        group of torch.distributed. A hook whose results differ between ranks, such as
        post_localSGD_hook, needs an attribute ``keeps_models_equal = False`` for checkpoints.
        Collective, between two steps. Mirrors DistributedDataParallel's method; the hooks of
        sherd.hooks, which need no process group, are for replicate(hook=...)."""
        made = torch_hook(self.module, state, hook)
        self._core.set_hook(made)
        self.hook_of = HookOf(made, self.mesh)

    def average_parameters(self) -> None:
        """Every rank's trainable parameters become their mean. Collective."""
        self._core.average_parameters()

    def report(self) -> Any:
        """Figures about buckets and reductions."""
        return self._core.report()

    def close(self) -> None:
        """Ends replication. Not collective; never waits. Idempotent."""
        self._core.close()
        _backward.buffers.discard(self._buffers)
        kept = self.module.__dict__.get(_KEPT)
        if kept is not None and kept.handle is self:
            del self.module.__dict__[_KEPT]

    @property
    def core_parameters(self) -> Any:
        """What sherd's optimizers take."""
        return self._core.named_parameters()

    def __reduce_ex__(self, protocol):
        raise FailedPreconditionError(
            "[python] the handle of a replicated module cannot be copied or "
            "pickled: copy or save the module, which is a plain one")


def _by_name(buffer_hook):
    """What options take for a function of a dictionary of buffers and a group."""
    if buffer_hook is None:
        return None
    if not callable(buffer_hook):
        raise InvalidArgumentError(
            "[python] buffer_hook: expected a function of buffers by name and a group, "
            f"found a {type(buffer_hook).__name__}")
    return lambda buffers, group: buffer_hook(dict(buffers), group)


def _replicas_of(given):
    """The Mesh over whose first axis gradients are averaged."""
    mesh = mesh_of(given)
    two_axes = isinstance(given, _core.Mesh) or getattr(given, "ndim", 1) == 2
    if not two_axes:  # One dimension means replicas here.
        return _core.Mesh(mesh.world, mesh.world.size, 1)
    if mesh.replicate_size == 1 and mesh.world.size > 1:
        raise InvalidArgumentError(
            "[python] replicate: expected a mesh of several replicas, found one of 1 "
            f"replica of {mesh.shard_size} shards, which has nothing to average: give "
            "the World, or a Mesh(world, replicate=...) of several replicas")
    return mesh


def replicate(module: torch.nn.Module, mesh: Where = None, *,
              bucket_bytes: int | None = None, first_bucket_bytes: int | None = None,
              static_graph: bool = False, exchange: str = "auto",
              reductions_under_way_max: int = 4,
              param_dtype: torch.dtype | None = None,
              reduce_dtype: torch.dtype | None = None, init_sync: bool = True,
              broadcast_buffers: bool = True, gradient_as_bucket_view: bool = True,
              gradient_divide_factor: float | None = None, hook: Hook = None,
              buffer_hook: Callable[[dict[str, torch.Tensor], Any], Any] | None = None,
              ignored: Sequence[str] = ()) -> DistributedDataParallel:
    """Averages the gradients of `module` over all ranks while backward runs, and
    returns a handle. Collective.

        handle = sherd.replicate(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        model(batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    mesh: as for fully_shard(). In a mesh of two dimensions, gradients are averaged over the
        first one, whose size must be above 1 if there are several ranks.
    exchange: as for fully_shard().
    hook: reduces gradients: one of sherd.hooks, or a function of a bucket and a group.
    buffer_hook: function of buffers by name and a group, which synchronises them in
        place at the end of each synchronised backward, instead of rank 0's values.

    The others are those of sherd::ReplicateOptions. Raises sherd.Error, on every
    rank where ranks differ. Mirrors torch.nn.parallel.DistributedDataParallel.
    """
    check_module(module)
    if module.__dict__.get(_KEPT) is not None:
        raise FailedPreconditionError(
            "[python] replicate: expected a module that is not replicated yet, found a "
            f"replicated {type(module).__name__}; close() of its handle ends that")
    mesh = _replicas_of(mesh)
    hook = comm_hook(hook)
    options = options_of(
        _core.ReplicateOptions, bucket_bytes=bucket_bytes,
        first_bucket_bytes=first_bucket_bytes, static_graph=static_graph,
        exchange=exchange, reductions_under_way_max=reductions_under_way_max,
        param_dtype=param_dtype, reduce_dtype=reduce_dtype,
        init_sync=init_sync, broadcast_buffers=broadcast_buffers,
        gradient_as_bucket_view=gradient_as_bucket_view,
        gradient_divide_factor=gradient_divide_factor, hook=hook,
        buffer_hook=_by_name(buffer_hook), ignored=names_of(ignored))
    buffers = SharedBuffers(module)
    with same_call(mesh.world, "sherd.replicate()"):
        core = _core.replicate(module_tree(module, buffers.named()), mesh, options)
    handle = DistributedDataParallel(module, core, mesh, buffers, hook)
    setattr(module, _KEPT, _Kept(handle))
    return handle
