# SPDX-License-Identifier: Apache-2.0
"""Ranks of PyTorch's MultiProcessTestCase are forked instead of spawned: each of
them would import PyTorch again."""

import torch.multiprocessing
from torch.testing._internal import common_distributed


def start(case):
    case._start_processes(torch.multiprocessing.get_context("fork").Process)


def install():
    common_distributed.MultiProcessTestCase._spawn_processes = start
