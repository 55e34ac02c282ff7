# SPDX-License-Identifier: Apache-2.0
"""What the extension is told about a Python module."""

import torch

from . import _core
from .errors import InvalidArgumentError

_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _checked(named, kind):
    items = []
    for name, tensor in named:
        if type(tensor) not in _PLAIN:
            raise InvalidArgumentError(
                f"[python] {kind} {name}: expected a plain torch.Tensor, found a "
                f"{type(tensor).__name__}")
        items.append((name, tensor))
    return items


def persistent_buffers(module):
    """(name, buffer) of those that the module's state_dict() has."""
    named = []
    for prefix, owner in module.named_modules(remove_duplicate=False):
        # pylint: disable-next=protected-access
        hidden = owner._non_persistent_buffers_set
        named += [(f"{prefix}.{name}" if prefix else name, buffer)
                  for name, buffer in owner.named_buffers(recurse=False)
                  if name not in hidden]
    return named


def checkpoint_tree(module):
    """The tree with what a checkpoint keeps of the module."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    parameters = module.named_parameters(remove_duplicate=False)
    return _core.ModuleTree(names, list(parameters), persistent_buffers(module))


def check_module(module):
    """Raises unless it is a torch.nn.Module."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(
            "[python] expected a torch.nn.Module, found a "
            f"{type(module).__name__}")
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise InvalidArgumentError(
            "[python] expected a plain module, found a DistributedDataParallel of PyTorch, "
            "which exchanges gradients itself: make none, and give its module to sherd")


def _sparse(module):
    """The names of embeddings that have nothing but a weight, whose gradient is sparse."""
    kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
    return [name for name, part in module.named_modules(remove_duplicate=False)
            if isinstance(part, kinds) and part.sparse
            and not [*part.children(), *part.buffers()]
            and [own for own, _ in part.named_parameters()] == ["weight"]]


def module_tree(module, buffers=None):
    """A tree of C++ modules that holds the module's own parameters by their names, and
    its own buffers or others, (name, tensor) of each."""
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    parameters = module.named_parameters(remove_duplicate=False)
    if buffers is None:
        buffers = _checked(module.named_buffers(remove_duplicate=False), "buffer")
    return _core.ModuleTree(
        names, _checked(parameters, "parameter"), buffers, _sparse(module))


class SharedBuffers:
    """Tensors in the memory of a module's buffers, which replicas synchronise. A module
    may have another tensor in place of a buffer later: follow() has ours lie there."""

    def __init__(self, module):
        _checked(module.named_buffers(remove_duplicate=False), "buffer")
        self._places = [
            (owner, name, f"{prefix}.{name}" if prefix else name, buffer.detach())
            for prefix, owner in module.named_modules(remove_duplicate=False)
            for name, buffer in owner.named_buffers(recurse=False)]

    def named(self):
        """(name, tensor) of each."""
        return [(name, ours) for _, _, name, ours in self._places]

    def follow(self):
        """A buffer that has become another shape or dtype is followed no more, since
        that of another rank may differ."""
        for owner, key, _, ours in self._places:
            buffer = owner._buffers.get(key)  # pylint: disable=protected-access
            if buffer is None or buffer.data_ptr() == ours.data_ptr():
                continue
            if (buffer.shape, buffer.dtype, buffer.device) == (
                    ours.shape, ours.dtype, ours.device) and buffer.is_contiguous():
                ours.data = buffer.detach()
