# SPDX-License-Identifier: Apache-2.0
"""Tells models where backwards begin and end, and whether they have failed, and where
forwards run inside torch.autograd.Function.

PyTorch's engine has a callback for the end, which is called too early where
checkpoints run backwards within one, and not at all after an exception. All
backwards of Python go through one object, in whose place install() puts another.

Inside the forward of a Function, such as that of torch.compile's "aot_eager", operators
record nothing, but it is one node of the graph. All functions of Python derive from one
class, which gets another apply().
"""

import weakref

import torch
from torch.autograd.variable import Variable

from . import _core


# Of replicated modules: those of each may be other tensors since the last backward.
buffers = weakref.WeakSet()


class _Engine(torch._C._ImperativeEngine):  # pylint: disable=protected-access
    """PyTorch's engine, with a bracket around each outermost backward."""

    def run_backward(self, *args, **kwargs):
        # torch.autograd.grad() is none.
        if not kwargs.get("accumulate_grad", False):
            return super().run_backward(*args, **kwargs)
        backward = _core.Backward()
        try:
            for of_module in list(buffers):
                of_module.follow()
            gradients = super().run_backward(*args, **kwargs)
        except BaseException as error:
            backward.end(f"{type(error).__name__}: {error}")
            raise
        backward.end(None)
        return gradients


def install():
    """Once, when sherd is imported."""
    # pylint: disable-next=protected-access
    Variable._execution_engine = _Engine()
    # pylint: disable-next=protected-access
    _core.bracket_functions(torch.autograd.function._SingleLevelFunction)
