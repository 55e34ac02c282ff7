# SPDX-License-Identifier: Apache-2.0
"""torch.nn.parallel.DistributedDataParallel as sherd.replicate, for PyTorch's tests."""

import weakref

import torch
from torch import nn


class DistributedDataParallel(nn.Module):
    """The module that PyTorch's DDP is around another one; here it only calls it.
    Devices are ignored, and parameters that go unused need no option."""

    def __init__(
        self, module, device_ids=None, output_device=None, dim=0,
        broadcast_buffers=True, init_sync=True, process_group=None,
        bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False,
        gradient_as_bucket_view=False, static_graph=False, device_mesh=None,
    ):  # fmt: skip
        import sherd

        super().__init__()
        self.module = module
        self.handle = sherd.replicate(
            module,
            device_mesh or process_group,
            bucket_bytes=bucket_cap_mb and max(1, int(bucket_cap_mb * 2**20)),
            static_graph=static_graph,
            init_sync=init_sync,
            broadcast_buffers=broadcast_buffers,
            gradient_as_bucket_view=gradient_as_bucket_view,
            ignored=list(getattr(module, "_ddp_params_and_buffers_to_ignore", ())),
        )
        # Where a test drops this one and makes another one around the module.
        weakref.finalize(self, self.handle.close).atexit = False

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def no_sync(self):
        return self.handle.no_sync()

    def join(self, **_options):
        return self.handle.join()

    def __reduce__(self):
        """Of PyTorch's DDP, too, the module is saved, and replicated when loaded."""
        return DistributedDataParallel, (self.module,)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, names):
        module._ddp_params_and_buffers_to_ignore = names


def install():
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
