# SPDX-License-Identifier: Apache-2.0
"""torch.nn.parallel.DistributedDataParallel as sherd.replicate, for PyTorch's tests."""

import weakref

import torch
import torch.distributed as dist
from torch import nn

# The handle of a module. PyTorch's DDP may be made again around one, or around itself.
handles = weakref.WeakKeyDictionary()


def ranks_of(process_group, device_mesh):
    if process_group is not None and device_mesh is not None:
        raise RuntimeError(
            "Cannot specify both process_group and device_mesh arguments."
        )
    return device_mesh or process_group


class DistributedDataParallel(nn.Module):
    """The module that PyTorch's DDP is around another one; here it only calls it.
    Devices are ignored, and parameters that go unused need no option."""

    def __init__(
        self, module, device_ids=None, output_device=None, dim=0,
        broadcast_buffers=True, init_sync=True, process_group=None,
        bucket_cap_mb=None, find_unused_parameters=False, check_reduction=False,
        gradient_as_bucket_view=False, static_graph=False, device_mesh=None,
        forward_sync_buffers=True,
    ):  # fmt: skip
        import sherd

        super().__init__()
        self.module = module
        self.device_mesh = device_mesh
        self.forward_sync_buffers = forward_sync_buffers
        where = ranks_of(process_group, device_mesh)
        self.process_group = process_group or dist.group.WORLD
        for part in module.modules():
            if part in handles:
                handles.pop(part).close()
        self._options = {
            "bucket_bytes": bucket_cap_mb and max(1, int(bucket_cap_mb * 2**20)),
            "static_graph": static_graph,
            "init_sync": init_sync,
            "broadcast_buffers": broadcast_buffers and forward_sync_buffers,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "ignored": list(getattr(module, "_ddp_params_and_buffers_to_ignore", ())),
        }
        self._replicate = lambda **more: sherd.replicate(
            module, where, **self._options, **more
        )
        self._take(self._replicate())

    def _take(self, handle):
        self.handle = handles[self.module] = handle
        # Where a test drops this one and makes another one around the module.
        weakref.finalize(self, handle.close).atexit = False

    def forward(self, *inputs, **options):
        return self.module(*inputs, **options)

    def no_sync(self):
        return self.handle.no_sync()

    def join(self, divide_by_initial_world_size=True, enable=True,
             throw_on_early_termination=False):  # fmt: skip
        return self.handle.join(
            divide_by_initial_world_size=divide_by_initial_world_size,
            throw_on_early_termination=throw_on_early_termination,
        )

    def register_comm_hook(self, state, hook):
        self.handle.register_comm_hook(state, hook)

    def _register_buffer_comm_hook(self, state, hook, _location=None):
        self.handle.close()
        self._take(self._replicate(buffer_hook=lambda named, _: hook(state, named)))

    def _default_broadcast_coalesced(self, buffers):
        for buffer in buffers:
            dist.broadcast(buffer, 0, group=self.process_group)

    def __reduce__(self):
        """Of PyTorch's DDP, too, the module is saved, and replicated when loaded."""
        return DistributedDataParallel, (self.module,)

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module, names):
        module._ddp_params_and_buffers_to_ignore = names


def install():
    torch.nn.parallel.DistributedDataParallel = DistributedDataParallel
    torch.nn.parallel.distributed.DistributedDataParallel = DistributedDataParallel
