# SPDX-License-Identifier: Apache-2.0
"""Where torch.distributed would make a Gloo backend, it makes sherd's `shm`.

The groups are still called "gloo", since PyTorch's tests ask for it by name: each
test that Gloo runs on CPU tensors is then run over shm.
"""

import torch.distributed.distributed_c10d as c10d


def create(options, unused):
    """Imports the package in the rank, since a fork would not inherit its threads."""
    import sherd.shm

    return sherd.shm._create(options, unused)


def install():
    c10d.Backend.register_backend("shm", create, extended_api=True, devices=["cpu"])
    # A group's default backend is found by this type.
    c10d.Backend.backend_type_map["gloo"] = c10d.ProcessGroup.BackendType.CUSTOM
    by_device = c10d.BackendConfig.get_device_backend_map

    def mapped(config):
        found = by_device(config).items()
        return {device: "shm" if name == "gloo" else name for device, name in found}

    c10d.BackendConfig.get_device_backend_map = mapped
