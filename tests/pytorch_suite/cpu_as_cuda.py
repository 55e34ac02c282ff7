# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tests of DistributedDataParallel that ask for CUDA run on the CPU.

What moves a tensor or a module to a GPU leaves it where it is.
"""

import contextlib

import torch
import torch.overrides
from torch.testing._internal import common_distributed


def run_anyway(_count, **_options):
    return lambda test: test


def stay(thing, *_arguments, **_options):
    return thing


def nothing(*_arguments, **_options):
    return None


def staying(move):
    """`to` that ignores the number of a device."""

    def to(thing, *arguments, **options):
        arguments = [one for one in arguments if type(one) is not int]
        if type(options.get("device")) is int:
            del options["device"]
        return move(thing, *arguments, **options) if arguments or options else thing

    return to


class NoNumbers(torch.overrides.TorchFunctionMode):
    """Tensors that are made on the device of a number are made on the CPU."""

    def __torch_function__(self, function, _types, arguments=(), options=None):
        options = options or {}
        if type(options.get("device")) is int:
            options["device"] = "cpu"
        return function(*arguments, **options)


def install():
    common_distributed.skip_if_lt_x_gpu = run_anyway
    common_distributed.skip_if_no_gpu = stay
    common_distributed.init_multigpu_helper = lambda ranks, _backend: {
        rank: [rank] for rank in range(ranks)
    }
    NoNumbers().__enter__()
    torch.Tensor.cuda = torch.nn.Module.cuda = stay
    torch.Tensor.to = staying(torch.Tensor.to)
    torch.nn.Module.to = staying(torch.nn.Module.to)
    torch.cuda.set_device = torch.cuda.synchronize = nothing
    torch.cuda.device = lambda _device: contextlib.nullcontext()
