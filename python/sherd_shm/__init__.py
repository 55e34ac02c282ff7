# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "shm": collectives of CPU tensors among ranks of
one host over shared memory.

    import sherd_shm
    torch.distributed.init_process_group("shm")

Importing it registers the backend. docs/design/shm_backend.md
"""

import atexit
import weakref

import torch.distributed

from . import _shm

_open = weakref.WeakSet()


def _create(options, _unused):
    backend = _shm.create(
        options.store,
        options.group_rank,
        options.group_size,
        timeout_seconds=options.timeout.total_seconds(),
        names=options.global_ranks_in_group or [],
        single_copy=True,
    )
    _open.add(backend)
    return backend


# A rank that ends in order has left, it has not died: the others may still be
# at work with what it gave them.
@atexit.register
def _leave():
    for backend in list(_open):
        backend.shutdown()


torch.distributed.Backend.register_backend(
    "shm", _create, extended_api=True, devices=["cpu"])
