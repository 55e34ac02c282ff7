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


def module_tree(module):
    """A tree of C++ modules that holds the module's own tensors by their names."""
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(
            "[python] expected a torch.nn.Module, found a "
            f"{type(module).__name__}")
    names = [name for name, _ in module.named_modules(remove_duplicate=False)]
    parameters = module.named_parameters(remove_duplicate=False)
    buffers = module.named_buffers(remove_duplicate=False)
    return _core.ModuleTree(
        names, _checked(parameters, "parameter"), _checked(buffers, "buffer"))
