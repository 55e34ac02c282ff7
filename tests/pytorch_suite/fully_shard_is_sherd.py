# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.fsdp.fully_shard as sherd.fully_shard, for PyTorch's tests.

PyTorch shards at each call, inner modules first; sherd shards a whole tree in one
call. So the calls are noted, and the outermost module of them is sharded with the
others as its units when its parameters are asked for or it runs. From then on
parameters() of any module gives a slice, with `grad`, where the module's own
parameter is sharded. to_local() and full_tensor() of a slice are what PyTorch's
DTensor has.
"""

import fsdp_parity
import torch
from fsdp_calls import Calls, FSDPModule, on_meta
from torch import nn

calls = Calls()
named_parameters = nn.Module.named_parameters


def fully_shard(module, **options):
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    calls.note(modules, options)
    return module


def with_slices(module, *arguments, **options):
    """nn.Module.named_parameters, with slices."""
    if not on_meta(module):  # Else it has no values yet to be sharded.
        for handle in calls.handles_in(module):
            calls.parts(handle)
    for name, parameter in named_parameters(module, *arguments, **options):
        yield name, calls.slice_of(parameter)


def register_fsdp_forward_method(_module, _name):
    """sherd notices whatever uses a parameter, in any method."""


def once_sharded(transform):
    """A transform of torch.func, within which no module can be sharded."""

    def call(*arguments, **options):
        calls.shard_all()
        return transform(*arguments, **options)

    return call


def share_comm_ctx(_modules):
    """A world's models share their connections."""


def install():
    from torch.distributed import fsdp
    from torch.distributed._composable import fsdp as composable
    from torch.distributed.fsdp._fully_shard import _fully_shard as own
    from torch.testing._internal import common_fsdp

    for package in (fsdp, composable, own):
        package.fully_shard = fully_shard
        package.FSDPModule = FSDPModule
        package.register_fsdp_forward_method = register_fsdp_forward_method
    fsdp.share_comm_ctx = share_comm_ctx
    common_fsdp.fully_shard = fully_shard
    nn.Module.named_parameters = with_slices
    torch.func.jvp = once_sharded(torch.func.jvp)
    common_fsdp.check_sharded_parity = fsdp_parity.checker(calls)
    torch.Tensor.to_local = lambda tensor: tensor
    torch.Tensor.full_tensor = fsdp_parity.full_tensor(calls)
