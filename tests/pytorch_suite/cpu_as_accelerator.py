# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tests of FSDP2 that ask for accelerators run on the CPU.

They count devices to choose their number of ranks, some only with accelerators. The
CPU stands for as many as they ask for. Ranks that PyTorch makes threads of one
process, which share what sherd keeps by process, are processes.
"""

import time

import torch
from torch.testing._internal import common_distributed, common_fsdp

RANKS_MAX = 8


def run_anyway(*_needed, **_options):
    return lambda test: test


def sleep(cycles):
    """What stands for a delay on a device's stream."""
    time.sleep(cycles / 1e9)


class RanksAreProcesses(common_fsdp.FSDPTest):
    """Stands for FSDPTestMultiThread."""

    def perThreadSetUp(self):
        pass

    def perThreadTearDown(self):
        pass


def install():
    cpu = torch.device("cpu")
    torch.accelerator.device_count = lambda: RANKS_MAX
    torch.accelerator.current_accelerator = lambda check_available=False: cpu
    torch.cpu.device_count = lambda: RANKS_MAX
    torch.cpu._sleep = sleep
    common_distributed.skip_if_lt_x_gpu = run_anyway
    common_distributed.requires_nccl_version = run_anyway
    common_fsdp.FSDPTestMultiThread = RanksAreProcesses
