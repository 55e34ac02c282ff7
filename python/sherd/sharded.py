# SPDX-License-Identifier: Apache-2.0
"""Fully sharded data parallel training of an unmodified torch.nn.Module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _core, _slices, state
from ._handles import handles, refuse_join
from ._options import member, names_of, options_of
from ._together import same_call
from ._tree import check_module, module_tree
from .errors import FailedPreconditionError, InvalidArgumentError
from .hooks import Hook, HookOf, comm_hook
from .units import (
    FullPrecisionScope, FullPrecisionSummon, InputCasts, Units, forward_casts,
    named_units)
from .world import Mesh, Where, mesh_of

_HANDLE = "_sherd_handle"  # An attribute of modules.


class FullyShardedDataParallel:
    """The handle of a sharded module, made by fully_shard().

    The module keeps it alive, and handle_of() finds it. Thread rule: one thread,
    not while others use the module. Mirrors sherd::FullyShardedDataParallel.
    """

    def __init__(self, module: torch.nn.Module, core, mesh, hooks, hook_of) -> None:
        self.module = module
        self.hook_of = hook_of  # For checkpoints.
        self._casts = InputCasts()
        self._hooks = [register(self._casts) for register in hooks]
        self.mesh = mesh
        self._core = core
        self._named = core.named_parameters()
        sharded = {name for unit in core.units() for name in unit.parameters}
        named = module.named_parameters(remove_duplicate=False)
        whole = {name: parameter for name, parameter in named if name in sharded}
        self._whole = list(whole.values())
        self._slices = self._slices_of(whole)
        self.whole_of = {id(part): parameter  # For optimizers: by slice.
                         for (_, part), parameter in zip(self._slices, self._whole)}
        _slices.mark((tensor for _, tensor in self._slices), self, True)
        _slices.mark(self._whole, self, False)
        self.guard = state.Guard(self)
        handles.add(self)

    def _slices_of(self, whole):
        """All ranks have the same names, so that groups of an optimizer that are made
        by name have the same owners and are empty on no rank: an optimizer of
        torch.optim refuses to have no parameters, and every rank has to publish."""
        found = dict(self._named.slices())
        slices = []
        for name, parameter in whole.items():
            # The core has no slices of parameters without elements.
            part = found[name] if name in found else torch.empty(
                0, dtype=parameter.dtype, device=parameter.device)
            if part.numel() == 0:
                part.requires_grad_(parameter.requires_grad)
            slices.append((name, part))
        return slices

    def parameters(self) -> list[torch.Tensor]:
        """This rank's slice of each parameter: 1-D leaves in the order of the
        module, for an optimizer. ``.grad`` is set when a synchronised backward
        returns. The same tensors every time. Where this rank owns nothing of a
        parameter the slice is empty and has no gradient."""
        return [tensor for _, tensor in self._slices]

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """(name, slice) of each of parameters(), with the module's names."""
        return list(self._slices)

    def module_parameters(self) -> list[torch.nn.Parameter]:
        """The module's own parameters that are sharded, not their slices."""
        return list(self._whole)

    def clip_grad_norm(self, max_norm: float, norm_type: float = 2.0,
                       error_if_nonfinite: bool = False) -> float:
        """Scales all gradients so that their total norm is at most `max_norm`;
        returns the norm before, equal on every rank. Collective. Mirrors
        torch.nn.utils.clip_grad_norm_, which may be called instead."""
        return self._core.clip_grad_norm(max_norm, float(norm_type), error_if_nonfinite)

    def publish(self) -> None:
        """Makes the new values of slices visible to all ranks. Call it on every rank after
        slices were written; optimizers of sherd and of torch.optim do so by themselves."""
        self._core.publish()

    def no_sync(self, axis: str = "both") -> AbstractContextManager:
        """In this scope, backwards exchange no gradients, and the next backward outside
        reduces their sum. With ``axis="replicate"`` only the exchange across replicas is left
        out. Mirrors FSDP.no_sync()."""
        if axis not in ("both", "replicate"):
            raise InvalidArgumentError(
                f"[python] axis: expected 'both' or 'replicate', found {axis!r}")
        return self._core.no_sync(axis == "replicate")

    def join(self, after_backward: Callable[[], Any] | None = None, *,
             divide_by_initial_world_size: bool = True,
             throw_on_early_termination: bool = False) -> AbstractContextManager:
        """A scope around a loop over inputs whose number differs between ranks. At its end, a
        rank takes part in the backwards of the ranks that still have inputs, and calls
        `after_backward` after each of them. That function must do what the loop does after a
        backward (clipping, the optimizer's step, zero_grad()), because every rank must do it.
        Mirrors sherd::JoinScope and torch.distributed.algorithms.Join."""
        return self._core.join(after_backward, divide_by_initial_world_size,
                               throw_on_early_termination)

    def join_hook(self, **_: Any) -> Any:
        """Raises: what torch.distributed.algorithms.Join would call."""
        refuse_join()

    def summon_full_parameters(self, *, read_only: bool = False,
                               full_precision: bool = False,
                               rank0_only: bool = False,
                               with_gradients: bool = False,
                               module: str = "") -> AbstractContextManager:
        """A scope in which every rank holds all parameters whole. The module's own parameters
        show their values; the scope's ``tensor(name)`` returns a parameter in full precision,
        and ``gradient(name)`` its gradient (needs `with_gradients`). Collective. Mirrors
        FSDP.summon_full_params()."""
        scope = self._core.summon_full_parameters(
            read_only, full_precision, rank0_only, with_gradients, module)
        return FullPrecisionSummon(scope, self._casts) if full_precision else scope

    def full_precision(self) -> AbstractContextManager:
        """A scope around an evaluation, in which units are gathered in the dtype of the
        shards, and inputs are not cast. Every rank uses the same units in the same
        order. Mirrors sherd::FullyShardedDataParallel::full_precision()."""
        return FullPrecisionScope(self._core.full_precision(), self._casts)

    def unshard(self, module: torch.nn.Module | str | None = None) -> Any:
        """Gathers all units, or starts to gather those of `module` (a module, or the name of a
        module or unit), as far as the budget allows. With `module` it returns a handle with
        ``wait()``. Calling it is never necessary. Mirrors FSDPModule.unshard()."""
        if module is None:
            return self._core.unshard()
        return self._core.unshard(self._name_of(module))

    def reshard(self, module: torch.nn.Module | str | None = None) -> None:
        """Frees all whole units, or those of `module`. Calling it is never necessary."""
        if module is None:
            self._core.reshard()
        else:
            self._core.reshard(self._name_of(module))

    def _name_of(self, module: torch.nn.Module | str) -> str:
        if isinstance(module, str):
            return module
        for name, candidate in self.module.named_modules():
            if candidate is module:
                return name or "(root)"
        raise InvalidArgumentError(
            "[python] expected a module inside the sharded one, or its name, found "
            f"another {type(module).__name__}")

    def set_strategy(self, strategy: str) -> None:
        """Changes the strategy between two steps. Collective."""
        self._core.set_strategy(member(_core.Strategy, "strategy", strategy))

    def set_budget_bytes(self, budget_bytes: int) -> None:
        """Changes the budget for whole units between two steps. Collective."""
        self._core.set_budget_bytes(budget_bytes)

    def units(self) -> list[Any]:
        """The units in the order of their first parameters: ``name``, ``bytes``,
        ``parameters`` and what they have cost so far."""
        return self._core.report().by_unit

    def report(self) -> Any:
        """Figures about units, gathers and plans; to_text() and to_json()."""
        return self._core.report()

    def state_dict(self, kind: str = "full") -> dict[str, Any]:
        """The parameters and persistent buffers with the names and shapes of the
        plain module's state_dict(), which ``plain.load_state_dict()`` takes.
        Collective, but for "sharded".

        kind: with "full" every rank gets whole tensors; with "rank0" rank 0 gets them, and the
            others get an empty dictionary; with "sharded" each rank gets its parts, which share
            memory with the module and which torch.distributed.checkpoint saves and loads.
            Memory: the result and one tensor.

        Mirrors torch.distributed.checkpoint.state_dict.get_model_state_dict().
        """
        return state.state_dict(self, kind)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Loads a dictionary that state_dict() returned (of this handle, on any number of
        ranks, or of a plain module), and publishes. Collective. Whole tensors are taken from
        rank 0 and converted to the dtypes of this module; on other ranks the dictionary may be
        empty.

        Returns missing_keys and unexpected_keys, as torch.nn.Module does. Raises sherd.Error, on
        every rank and before anything changes, if shapes differ or, with `strict`, if there are
        such keys.
        """
        return state.load_state_dict(self, state_dict, strict)

    def state_dict_names(self) -> AbstractContextManager:
        """A scope in which state_dict() of the module and of modules in it does not raise, for
        functions that read its names alone and take the values from a whole state that they are
        given, as peft's save_pretrained() does with `modules_to_save`. Not collective: rank 0
        alone may use it. Values must not be read, since each rank has a part of them."""
        return self.guard.opened()

    def close(self) -> None:
        """Ends sharding: later use of the module is an error. Idempotent."""
        self._core.close()
        for hook in self._hooks:
            hook.remove()
        if self.mesh.world.size == 1:
            self.guard.remove()  # The module has its values.
        _slices.unmark(self._whole)
        _slices.unmark(tensor for _, tensor in self._slices)
        self.module.__dict__.pop(_HANDLE, None)

    @property
    def core_parameters(self) -> Any:
        """What sherd's optimizers take."""
        return self._named

    __reduce_ex__ = _slices.refuse_copy


def handle_of(module: Any) -> FullyShardedDataParallel | None:
    """The handle of a sharded module; None for another."""
    return getattr(module, "__dict__", {}).get(_HANDLE)


def fully_shard(module: torch.nn.Module, mesh: Where = None, *,
                units: Units = None, strategy: str = "full_shard",
                budget_bytes: int | None = None, memory_bytes: int | None = None,
                prefetch_visits: int = 1, secondary_ranks: int = 0,
                exchange: str = "auto", optimizer_axes: str = "shard",
                mixed_precision: _core.MixedPrecision | None = None,
                sync_module_states: bool = False,
                compare_initial_values: bool = True,
                share_gradients: bool = False,
                device: torch.device | str | None = None,
                init_fn: Callable[[str, torch.Tensor], Any] | None = None,
                reductions_under_way_max: int = 4,
                gradient_divide_factor: float | None = None,
                hook: Hook = None,
                gather_hook: _core.GatherHook | None = None,
                cpu_offload: bool = False, memory_from_backend: bool = False,
                ignored: Sequence[str] = ()) -> FullyShardedDataParallel:
    """Shards the parameters of `module` in place over all ranks and returns a
    handle. Collective.

        handle = sherd.fully_shard(model)
        optimizer = torch.optim.AdamW(handle.parameters(), lr=3e-4)
        model(batch).loss.backward()
        handle.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()

    mesh: a World, Mesh, ProcessGroup or DeviceMesh (one dimension: shards; two:
        replicas and shards). None: the default process group if there is one, else
        the ranks that torchrun or `sherd run` has started.
    units: which modules are gathered together. None: the children of each
        ModuleList and Sequential. A pattern of names such as "h.*", a class,
        several of either, or a function of a name and a module that returns a bool
        or UnitOptions. []: one unit of all.
    strategy: "full_shard", "shard_grad_op" or "no_shard"; how much stays whole.
    budget_bytes: bytes of whole units instead of the strategy's.
    memory_bytes: a limit, in bytes, for the resident memory of the process or, for a module on
        a GPU, for the memory that LibTorch takes from that GPU.
    prefetch_visits: how many visits before its use a unit may be gathered.
    secondary_ranks: the size of the groups of neighbouring ranks, such as those of a host,
        inside which a unit is gathered again; 0: over all ranks. Only if ranks exchange messages.
    exchange: "auto", "collective" (messages), "shm" (memory that the ranks of one host
        share) or "hierarchical" (shared memory on each of several hosts, messages
        between them), as SHERD_EXCHANGE. "messages" means "collective", and
        "shared_memory" means "shm". Performance only, except that "hierarchical" adds
        gradients in another order.
    optimizer_axes: "shard" or "both": whether replicas share optimizer state.
    device: where tensors of the meta device get memory. None: where the others are.
    init_fn: function of a name and a CPU tensor that writes the first value of a
        tensor of the meta device.
    hook: reduces gradients: one of sherd.hooks, or a function of a bucket and a group.
    gather_hook: decides what is sent when units are gathered, e.g.
        sherd.hooks.quantise_gathers().
    cpu_offload: for a module on a GPU, keep shards, their gradients and the optimizer's state on
        the host.
    memory_from_backend: for a module on a GPU, let the backend, such as NCCL, allocate
        what its collectives read and write. Performance only.
    ignored: names or patterns of modules, parameters and buffers to leave alone.

    The others are those of sherd::FullyShardOptions. Raises sherd.Error, on every
    rank where ranks differ. Mirrors torch.distributed.fsdp.fully_shard.
    """
    check_module(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise InvalidArgumentError(
            "[python] fully_shard: expected a torch.nn.Module, which may have scripted "
            "parts, found a script, which takes no hooks")
    if handle_of(module) is not None:
        raise FailedPreconditionError(
            "[python] fully_shard: expected a module that is not sharded yet, found "
            f"a sharded {type(module).__name__}; sherd.handle_of(module) is its handle")
    hook = comm_hook(hook)
    options = options_of(
        _core.FullyShardOptions, strategy=strategy, budget_bytes=budget_bytes,
        memory_bytes=memory_bytes, prefetch_visits=prefetch_visits,
        secondary_ranks=secondary_ranks, exchange=exchange, optimizer_axes=optimizer_axes,
        mixed_precision=mixed_precision, sync_module_states=sync_module_states,
        compare_initial_values=compare_initial_values,
        share_gradients=share_gradients,
        device=torch.device(device) if isinstance(device, str) else device,
        initialise=init_fn,
        reductions_under_way_max=reductions_under_way_max,
        gradient_divide_factor=gradient_divide_factor, hook=hook,
        gather_hook=gather_hook, cpu_offload=cpu_offload,
        memory_from_backend=memory_from_backend, ignored=names_of(ignored))
    mesh = mesh_of(mesh)
    named, hooks = forward_casts(
        module, named_units(module, units), mixed_precision, options.ignored)
    with same_call(mesh.world, "sherd.fully_shard()"):
        core = _core.fully_shard(module_tree(module), mesh, options, named)
    replicas = Mesh(mesh.world, mesh.world.size, 1) if strategy == "no_shard" else mesh
    handle = FullyShardedDataParallel(
        module, core, mesh, hooks, HookOf(hook, replicas))
    setattr(module, _HANDLE, handle)
    return handle
