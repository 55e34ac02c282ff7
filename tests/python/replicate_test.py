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

    def test_parameters_are_used_in_the_dtype_asked_for(self):
        plain = decoder()
        expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
        model = decoder()
        handle = self.sherd.replicate(
            model, param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        used = set()
        model[3].register_forward_hook(
            lambda module, inputs, output: used.add(output.dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for ours, theirs in zip(together(model, handle, optimizer)[0], expected[0]):
            self.assertAlmostEqual(ours, theirs, delta=0.02 * abs(theirs))
        self.assertEqual(used, {torch.bfloat16})
        self.assertEqual({p.dtype for p in model.parameters()}, {torch.float32})
        handle.close()
        with self.assertRaisesRegex(self.sherd.Error, "reduce_dtype"):
            self.sherd.replicate(decoder(), reduce_dtype=torch.int64)

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

    def test_a_buffer_that_is_assigned_anew_is_synchronised(self):
        class Counts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 2)
                self.register_buffer("count", torch.zeros(2))
                self.register_buffer("seen", torch.zeros(1))

            def forward(self, x):
                self.count = self.count + ranks.rank() + 1
                self.seen = torch.zeros(len(x))  # Another shape is this rank's own.
                return self.layer(x)

        model = Counts()
        handle = self.sherd.replicate(model)
        before = model.count
        for step in range(1, 3):
            model(torch.ones(2 + ranks.rank(), 2)).sum().backward()
            self.assertEqual(model.count.tolist(), [float(step)] * 2)  # Rank 0's.
            self.assertEqual(len(model.seen), 2 + ranks.rank())
        self.assertEqual(before.tolist(), [0.0, 0.0])
        handle.close()

    def test_memory_may_be_shared_with_other_processes(self):
        """Storages of parameters and gradients get other memory in place."""
        for exchange in ("shared_memory", "messages"):
            plain = decoder()
            expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
            model = decoder()
            handle = self.sherd.replicate(model, exchange=exchange)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer.register_step_post_hook(
                lambda *_: (model.zero_grad(), model.share_memory())
            )
            found = together(model, handle, optimizer)
            for ours, theirs in zip(found[0], expected[0]):
                self.assertAlmostEqual(ours, theirs, delta=2e-5 * abs(theirs))
            self.assertTrue(all(p.is_shared() for p in model.parameters()))
            before = [p.detach().clone() for p in model.parameters()]
            handle.average_parameters()
            handle.close()
            for ours, theirs in zip(model.parameters(), before):
                torch.testing.assert_close(ours.detach(), theirs, rtol=0, atol=1e-6)

    def test_gradients_that_were_moved_are_an_error(self):
        model = decoder()
        handle = self.sherd.replicate(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: model.share_memory())
        with self.assertRaisesRegex(self.sherd.Error, "was given other memory") as raised:
            together(model, handle, optimizer)
        self.assertIn("gradient_as_bucket_view", str(raised.exception))
        handle.close()

    def test_sparse_gradients_are_summed(self):
        def make():
            torch.manual_seed(0)
            return torch.nn.Sequential(
                torch.nn.Embedding(8, 4, sparse=True), torch.nn.Linear(4, 4))

        plain, model = make(), make()
        handle = self.sherd.replicate(model)
        for rank in range(ranks.size()):
            plain(torch.tensor([rank, 7])).sum().div(ranks.size()).backward()
        model(torch.tensor([ranks.rank(), 7])).sum().backward()
        self.assertTrue(model[0].weight.grad.is_sparse)
        for ours, theirs in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense())
        handle.close()
        embedding = make()[0]  # The module itself.
        handle = self.sherd.replicate(embedding)
        embedding(torch.tensor([ranks.rank(), 7])).sum().backward()
        self.assertTrue(embedding.weight.grad.is_sparse)
        self.assertEqual(embedding.weight.grad.to_dense().sum().item(), 8)
        handle.close()

    def test_copies_of_parameters_are_no_use_of_them(self):
        model, other = decoder(), decoder()
        handle = self.sherd.replicate(model)
        others = self.sherd.replicate(other)
        if ranks.rank() == 0:
            copy.deepcopy(model)
            kept = [p.clone() for p in model.parameters()]
            self.assertEqual(len(kept), len(list(model.parameters())))
        loss_of(other, batch_of(0, ranks.rank())).backward()
        self.assertEqual(handle.report().backwards, 0)
        loss_of(model, batch_of(0, ranks.rank())).backward()
        self.assertEqual(handle.report().backwards, 1)
        handle.close()
        others.close()

    def test_join_ends_after_the_last_input_of_any_rank(self):
        model = torch.nn.Linear(3, 3)
        model.register_buffer("mine", torch.zeros(1))
        handle = self.sherd.replicate(model, broadcast_buffers=False)
        model.mine.fill_(ranks.rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with handle.join():
            for _ in range(1 + ranks.rank()):
                model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        self.assertEqual(handle.report().backwards, ranks.size())
        gathered = handle.mesh.world.all_gather([int(1e6 * model.weight.sum())])
        self.assertEqual(len({numbers[0] for numbers in gathered}), 1)
        self.assertEqual(model.mine.item(), ranks.rank())
        handle.close()

    def test_join_scopes_of_two_models_are_refused(self):
        """A rank without inputs would wait in one for the others, which use both."""
        for wraps in ((self.sherd.replicate, self.sherd.fully_shard),
                      (self.sherd.fully_shard, self.sherd.replicate)):
            outer, inner = (wrap(torch.nn.Linear(2, 2)) for wrap in wraps)
            with self.assertRaisesRegex(
                    self.sherd.FailedPreconditionError, "join scope of another model"):
                with outer.join(lambda: None), inner.join(lambda: None):
                    pass
            with inner.join(lambda: None):
                pass
            inner.close()
            outer.close()

    def test_a_scope_is_entered_once_at_a_time(self):
        handle = self.sherd.replicate(torch.nn.Linear(2, 2))
        scope = handle.no_sync()
        with scope:
            with self.assertRaisesRegex(
                    self.sherd.FailedPreconditionError, "found another one inside it"):
                scope.__enter__()
        with scope:
            pass
        handle.close()

    def test_arguments_of_other_types_are_named(self):
        for options, told in (
                ({"bucket_bytes": "many"}, "bucket_bytes: expected .*[Ii]nt.*found 'many'"),
                ({"ignored": "weight"}, "ignored: expected .*found 'weight'"),
                ({"exchange": "pigeons"}, "exchange: expected one of auto, .*'pigeons'"),
                ({"hook": 3}, "hook: expected one of sherd.hooks.* found a int"),
                ({"buffer_hook": 3}, "buffer_hook: expected a function .* found a int")):
            with self.assertRaisesRegex(self.sherd.InvalidArgumentError, told):
                self.sherd.replicate(torch.nn.Linear(2, 2), **options)
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "lr: expected float, found 'high'"):
            self.sherd.AdamW(self.sherd.replicate(torch.nn.Linear(2, 2)), lr="high")
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "betas: .* found 0.9"):
            self.sherd.AdamW(self.sherd.replicate(torch.nn.Linear(2, 2)), betas=0.9)
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "found a int"):
            self.sherd.fully_shard(torch.nn.Linear(2, 2)).load_state_dict(3)
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "init_fn: expected .*Callable.* found 3"):
            self.sherd.fully_shard(torch.nn.Linear(2, 2), init_fn=3)
        model = torch.nn.Linear(2, 2)
        for act in (lambda: self.sherd.AdamW(model.parameters()),
                    lambda: self.sherd.SGD(model), lambda: self.sherd.Muon([]),
                    lambda: self.sherd.GradScaler(model),
                    lambda: self.sherd.optimizer_state_dict(model, None),
                    lambda: self.sherd.load_optimizer_state_dict(model, None, {}),
                    lambda: self.sherd.save("folder", 1, model),
                    lambda: self.sherd.load("folder", model),
                    lambda: self.sherd.TrainingState(model)):
            with self.assertRaisesRegex(
                    self.sherd.InvalidArgumentError, "expected the handle"):
                act()
        for wrong in (None, "model", torch.ones(2)):
            for by in (self.sherd.replicate, self.sherd.fully_shard):
                with self.assertRaisesRegex(
                        self.sherd.InvalidArgumentError, "expected a torch.nn.Module"):
                    by(wrong)

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
