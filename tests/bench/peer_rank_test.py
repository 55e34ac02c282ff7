#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""bench/peer_rank.py: how `fsdp2` is distributed, with processes that are only said
to be there."""

import argparse
import os
import sys
import unittest

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench"))
import peer_rank  # noqa: E402


class Fsdp2(unittest.TestCase):
    def setUp(self):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        self.addCleanup(dist.destroy_process_group)

    def mesh(self, replicate):
        """(shape, names) of the mesh of all parameters."""
        work = argparse.Namespace(
            contender="fsdp2", layers=1, width=8, heads=2, sequence=4, batch=1,
            strategy="full_shard", dtype="fp32", replicate=replicate)
        model = peer_rank.distributed(peer_rank.Gpt(work), work)
        found = {(tuple(parameter.device_mesh.shape),
                  parameter.device_mesh.mesh_dim_names)
                 for parameter in model.parameters()}
        self.assertEqual(len(found), 1)
        return found.pop()

    def test_shards_over_all_ranks(self):
        self.assertEqual(self.mesh(1), ((4,), ("shard",)))

    def test_shards_within_each_replica(self):
        self.assertEqual(self.mesh(2), ((2, 2), ("replicate", "shard")))


if __name__ == "__main__":
    unittest.main()
