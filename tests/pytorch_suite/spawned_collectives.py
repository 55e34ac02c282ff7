# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tests of collectives and of DistributedDataParallel, in the form in
which its test/distributed/test_distributed_spawn.py runs them. They are part of
the installed package, so that they need no checkout of PyTorch."""

from torch.testing._internal.distributed import distributed_test
from torch.testing._internal.distributed.distributed_test import (
    DistributedTest,
    TestDistBackend,
)


class TestDistBackendWithSpawn(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()


# PyTorch skips these for Gloo, which has no such collective of CPU tensors.
for name in dir(TestDistBackendWithSpawn):
    if name.startswith("test_all_to_all") and "cuda" not in name:
        getattr(TestDistBackendWithSpawn, name).__unittest_skip__ = False

events_named = distributed_test.get_profiling_event


def events_of_shm(wanted, *more, **named):
    """The profiler's events bear the backend's true name (gloo_is_shm.py)."""
    events = events_named(wanted.replace("gloo:", "shm:"), *more, **named)
    for event in events:
        event.name = event.name.replace("shm:", "gloo:")
    return events


distributed_test.get_profiling_event = events_of_shm
del DistributedTest, TestDistBackend
