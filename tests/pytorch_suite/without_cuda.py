# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tests that need CUDA devices skip at once, where there are none: PyTorch
has each of their ranks find out by itself."""

import unittest

from torch.testing._internal import common_distributed


def skip_if_lt_x_gpu(count, **_options):
    return unittest.skip(f"Need at least {count} CUDA devices")


def install():
    common_distributed.skip_if_lt_x_gpu = skip_if_lt_x_gpu
    common_distributed.skip_if_no_gpu = unittest.skip("CUDA is not available")
