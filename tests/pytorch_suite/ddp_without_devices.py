# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own DistributedDataParallel takes CPU modules along with the numbers of
devices that tests give it. It is the reference of tests of FSDP2. What of its own
tests it fails so, on a CPU, is not sherd's to pass."""

import torch


def install():
    ddp = torch.nn.parallel.DistributedDataParallel
    init = ddp.__init__

    def on_cpu(self, module, device_ids=None, output_device=None, **options):
        init(self, module, **options)

    ddp.__init__ = on_cpu
