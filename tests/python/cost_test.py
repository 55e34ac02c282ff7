# SPDX-License-Identifier: Apache-2.0
"""What a step runs in Python besides the model: nothing for each unit."""

import sys
import unittest
from pathlib import Path

import ranks
import torch
from torch import nn


def calls_of(package, run):
    """How many functions of the package `run` calls."""
    count = 0

    def profile(frame, event, _argument):
        nonlocal count
        if event == "call" and Path(frame.f_code.co_filename).parent == package:
            count += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


class Cost(unittest.TestCase):
    def calls_of_a_step(self, layers, make_optimizer):
        import sherd  # pylint: disable=import-outside-toplevel
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])
        handle = sherd.fully_shard(model)
        self.assertEqual(len(handle.units()), layers)
        optimizer = make_optimizer(sherd, handle)

        def step():
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()
        calls = calls_of(Path(sherd.__file__).parent, step)
        handle.close()
        return calls

    def test_a_step_with_an_optimizer_of_torch_does_not_depend_on_units(self):
        def sgd(_, handle):
            return torch.optim.SGD(handle.parameters(), lr=0.1)
        few = self.calls_of_a_step(2, sgd)
        self.assertGreater(few, 0)
        self.assertEqual(self.calls_of_a_step(20, sgd), few)

    def test_a_step_with_an_optimizer_of_sherd_is_told_of_backward_alone(self):
        self.assertEqual(
            self.calls_of_a_step(5, lambda sherd, handle: sherd.AdamW(handle)), 1)


if __name__ == "__main__":
    ranks.main()
