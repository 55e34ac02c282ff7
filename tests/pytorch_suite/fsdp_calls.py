# SPDX-License-Identifier: Apache-2.0
"""Calls of fully_shard in PyTorch's way, and the handles of sherd they lead to."""

import collections
import contextlib
import weakref

import sherd
import torch
from torch import nn


named_parameters = nn.Module.named_parameters  # Before slices stand for some.


class FSDPModule:
    """What a module that fully_shard was called for has besides its own methods.

    How long parameters stay whole and what is gathered ahead is decided by sherd's
    plan, so that what PyTorch offers for that does nothing.
    """

    def __new__(cls, *arguments, **options):
        # A part of a Sequential is made by its class, and is a plain one.
        plain = cls.__mro__[2]
        made = plain.__new__(plain)
        made.__init__(*arguments, **options)
        return made

    def set_requires_gradient_sync(self, requires, *, recurse=True):
        self._calls.synchronise(self, "both", requires, recurse)

    def set_requires_all_reduce(self, requires, *, recurse=True):
        self._calls.synchronise(self, "replicate", requires, recurse)

    def unshard(self, async_op=False):
        return self._calls.unshard(self)

    def reshard(self):
        self._calls.reshard(self)

    def set_is_last_backward(self, _last):
        pass

    def set_reshard_after_forward(self, _reshard, recurse=True):
        pass

    def set_reshard_after_backward(self, _reshard, *, recurse=True):
        pass

    def set_unshard_in_backward(self, _unshard):
        pass

    def set_modules_to_forward_prefetch(self, _modules):
        pass

    def set_modules_to_backward_prefetch(self, _modules):
        pass

    def _set_unshard_async_op(self, _async_op):
        pass

    def reset_iter_state(self):
        pass


Slice = collections.namedtuple("Slice", "handle parameter part")


class Whole:
    """What unshard() returns where sherd's own returned nothing."""

    def wait(self):
        pass


def mixed_precision_of(policy):
    return policy and sherd.MixedPrecision(
        param_dtype=policy.param_dtype,
        reduce_dtype=policy.reduce_dtype,
        cast_forward_inputs=policy.cast_forward_inputs,
    )


def unit_options(options, name):
    policy = options.get("mp_policy")
    return sherd.UnitOptions(
        name=name,
        mixed_precision=mixed_precision_of(policy),
        output_dtype=policy and policy.output_dtype,
        keep_whole=options.get("reshard_after_forward") is False,
    )


def call_hooks(parts):
    """Those that autograd would call after it has accumulated gradients."""
    for part in parts:
        for hook in list((part._post_accumulate_grad_hooks or {}).values()):
            hook(part)


def on_meta(module):
    return any(parameter.is_meta for _, parameter in named_parameters(module))


def name_in(handle, module):
    """The name of a module inside of the handle's, else None."""
    names = {inner: name for name, inner in handle.module.named_modules()}
    return names.get(module) or None


class Calls:
    """Those that were not followed yet, by module, and what came of the others."""

    def __init__(self):
        self._pending = {}
        self._handles = weakref.WeakKeyDictionary()  # Of each module in a tree.
        self._parts = {}  # Slices by handle and name.
        self._slices = {}  # By the id of the parameter, which a Slice holds.
        self._unsharded = set()  # Handles that were asked to, until they are used.
        self._apart = {}  # Scopes of no_sync by handle and axis.
        self._busy = False
        self._calls = 0

    def note(self, modules, options):
        self._calls += 1
        for module in modules:
            plain = type(module)
            name = f"call {self._calls}" if len(modules) > 1 else None
            self._pending[module] = (options, name)
            extra = {"_calls": self}
            module.__class__ = type(f"FSDP{plain.__name__}", (FSDPModule, plain), extra)
            module.register_forward_pre_hook(
                self._before_forward, prepend=True, with_kwargs=True
            )

    def slice_of(self, parameter):
        """The parameter itself where it is not sharded, or whole by request."""
        known = None if self._busy else self._slices.get(id(parameter))
        if known is None or known.handle in self._unsharded:
            return parameter
        return known.part

    def shard_all(self):
        for root in list(self._pending):
            self.shard(root)

    def shard(self, module):
        """Follows the calls that concern `module`, in it or around it."""
        if self._busy or not self._pending:
            return
        mine = set(module.modules())
        trees = {root: set(root.modules()) for root in self._pending}
        for root, tree in trees.items():
            inner = any(
                root in other for top, other in trees.items() if top is not root
            )
            if not inner and (root in mine or module in tree):
                self._busy = True
                try:
                    self._shard_tree(root, tree)
                finally:
                    self._busy = False

    def _shard_tree(self, root, tree):
        members = {
            module: self._pending.pop(module)
            for module in tree
            if module in self._pending
        }
        if next(named_parameters(root), None) is None:
            return
        options, _ = members[root]
        done = {module for module in tree if sherd.handle_of(module)}
        names = [name for name, module in root.named_modules() if module in done]
        left_out = options.get("ignored_params") or ()
        names += [name for name, one in named_parameters(root) if one in left_out]
        policy = options.get("mp_policy")

        def unit(name, module):
            if not name or module not in members:
                return False
            return unit_options(*members[module])

        handle = sherd.fully_shard(
            root,
            options.get("mesh"),
            units=unit if len(members) > 1 else [],
            strategy="shard_grad_op"
            if options.get("reshard_after_forward") is False
            else "full_shard",
            mixed_precision=mixed_precision_of(policy),
            ignored=names,
            compare_initial_values=False,  # Tests may leave them uninitialised.
        )
        self._remember(handle, root, tree)

    def _remember(self, handle, root, tree):
        slices = dict(handle.named_parameters())
        sharded = {id(parameter) for parameter in handle.module_parameters()}
        self._parts[handle] = {}
        empty = []
        for name, parameter in named_parameters(root):
            if id(parameter) in sharded:
                # A rank that has nothing of a parameter has no slice of it.
                nothing = torch.empty(0, requires_grad=parameter.requires_grad)
                part = slices.get(name, nothing)
                if part is nothing:
                    empty.append(part)
                self._parts[handle][name] = part
                self._slices[id(parameter)] = Slice(handle, parameter, part)
        handle.parameters()[-1].register_post_accumulate_grad_hook(
            lambda _part: call_hooks(empty)
        )
        for module in tree:
            self._handles.setdefault(module, handle)

    def parts(self, handle):
        """(name, slice) of each parameter, empty slices among them. Those have a
        gradient when any other has one."""
        parts = self._parts[handle].items()
        had = any(part.grad is not None for _, part in handle.named_parameters())
        for _, part in parts:
            if not part.numel():
                part.grad = torch.empty(0) if had and part.requires_grad else None
        return parts

    def _before_forward(self, module, inputs, keywords):
        """Slices that were frozen, or no longer are, take their parameters along."""
        before = set(module._forward_pre_hooks)
        self.shard(module)
        for key, hook in list(module._forward_pre_hooks.items()):
            if key not in before:  # PyTorch calls it from the next forward on.
                inputs, keywords = hook(module, inputs, keywords)
        self._unsharded.clear()
        for known in self._slices.values():
            if known.parameter.requires_grad != known.part.requires_grad:
                known.parameter.requires_grad_(known.part.requires_grad)
        return inputs, keywords

    def handles(self):
        return set(self._handles.values())

    def handles_in(self, module):
        self.shard(module)
        found = {self._handles[one] for one in module.modules() if one in self._handles}
        return sorted(found, key=id)

    def synchronise(self, module, axis, requires, recurse):
        for handle in self.handles_in(module):
            if not recurse or handle.module not in set(module.modules()):
                raise NotImplementedError("sherd synchronises all units or none")
            scope = self._apart.pop((handle, axis), None)
            if scope:
                scope.close()
            if not requires:
                scope = contextlib.ExitStack()
                scope.enter_context(handle.no_sync(axis))
                self._apart[handle, axis] = scope

    def unshard(self, module):
        waits = Whole()
        for handle in self.handles_in(module):
            waits = handle.unshard(name_in(handle, module)) or waits
            self._unsharded.add(handle)
        return waits

    def reshard(self, module):
        for handle in self.handles_in(module):
            handle.reshard(name_in(handle, module))
            self._unsharded.discard(handle)
