# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "shm": collectives of CPU tensors among ranks of one
host over shared memory.

    import sherd.shm
    torch.distributed.init_process_group("shm")

Importing it registers the backend. PyTorch offers monitored_barrier() for Gloo only;
every call of this backend names the rank that died or does not come. A callback of
a future may wait for the futures of calls that it has made itself; for an earlier call
it uses wait() of the work.
"""

import atexit

import torch.distributed

from . import _shm

_open = _shm.OpenBackends()

# A rank that ends in order has left, it has not died: the others may still be at
# work with what it gave them.
atexit.register(_open.shutdown)


def _create(options, _unused):
    return _open.create(
        options.store,
        options.group_rank,
        options.group_size,
        timeout_seconds=options.timeout.total_seconds(),
        names=options.global_ranks_in_group or [],
        single_copy=True,
        # From PyTorch 2.14 on.
        enable_reconfigure=getattr(options, "enable_reconfigure", False),
    )


torch.distributed.Backend.register_backend(
    "shm", _create, extended_api=True, devices=["cpu"])
