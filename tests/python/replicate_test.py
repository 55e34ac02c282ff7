# SPDX-License-Identifier: Apache-2.0
"""sherd.replicate trains unmodified modules as one process would."""

import copy
import gc
import io
import unittest
import weakref

import ranks
import torch
from fully_shard_test import alone, batch_of, decoder, loss_of, together


class Replicate(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def test_trains_as_one_process_would(self):
        for exchange in ("shared_memory", "messages"):
            plain = decoder()
            expected = alone(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
            model = decoder()
            handle = self.sherd.replicate(model, exchange=exchange)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            found = together(model, handle, optimizer)
            for ours, theirs in zip(found[0], expected[0]):
                self.assertAlmostEqual(ours, theirs, delta=2e-5 * abs(theirs))
            self.assertEqual(handle.report().backwards, len(found[0]))
            handle.close()

    def test_no_sync_keeps_gradients_of_this_rank(self):
        plain = decoder()
        loss_of(plain, batch_of(0, ranks.rank())).backward()
        model = decoder()
        handle = self.sherd.replicate(model)
        with handle.no_sync():
            loss_of(model, batch_of(0, ranks.rank())).backward()
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            self.assertTrue(torch.allclose(ours.grad, theirs.grad, atol=1e-6))
        handle.close()

    def test_the_module_keeps_its_handle(self):
        plain = decoder()
        expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
        model = decoder()
        self.sherd.replicate(model)
        gc.collect()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for ours, theirs in zip(together(model, None, optimizer)[0], expected[0]):
            self.assertAlmostEqual(ours, theirs, delta=2e-5 * abs(theirs))
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            self.assertTrue(torch.allclose(ours, theirs, atol=1e-5))
        with self.assertRaisesRegex(self.sherd.FailedPreconditionError, "not replicated yet"):
            self.sherd.replicate(model)
        gone = weakref.ref(model)
        del model, optimizer
        gc.collect()
        self.assertIsNone(gone())

    def test_copies_of_the_module_are_plain(self):
        model = decoder()
        handle = self.sherd.replicate(model)
        saved = io.BytesIO()
        torch.save(model, saved)
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        for other in (copy.deepcopy(model), loaded):
            loss_of(other, batch_of(0, ranks.rank())).backward()
            self.assertTrue(all(p.grad is None for p in model.parameters()))
            self.sherd.replicate(other).close()
        handle.close()
        self.sherd.replicate(model).close()

    def test_a_mesh_of_one_replica_is_refused(self):
        world = self.sherd.World.from_environment()
        if world.size > 1:
            with self.assertRaisesRegex(
                    self.sherd.InvalidArgumentError, f"1 replica of {world.size} shards"):
                self.sherd.replicate(decoder(), self.sherd.Mesh(world))
        replicas = self.sherd.Mesh(world, replicate=world.size)
        handle = self.sherd.replicate(decoder(), replicas)
        self.assertEqual(handle.report().world_size, world.size)
        handle.close()


if __name__ == "__main__":
    ranks.main()
