# SPDX-License-Identifier: Apache-2.0
"""Communication hooks of sherd, of PyTorch and of a user, over replicas and shards."""

import contextlib
import importlib.util
import shutil
import tempfile
import unittest

import ranks
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

STEPS = 4


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))


def train(model, parameters):
    """The gradients of the last step; this rank has inputs of its own."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * step + ranks.rank())
        model(torch.randn(4, 16, generator=generator)).square().mean().backward()
        optimizer.step()
    return [parameter.grad.clone() for parameter in parameters if parameter.numel() > 0]


def of_all_ranks(world, gradients):
    """Whether all ranks have these bits."""
    bits = [int(g.view(torch.int32).to(torch.int64).sum()) for g in gradients]
    return len({tuple(numbers) for numbers in world.all_gather(bits)}) == 1


@contextlib.contextmanager
def shared_folder(world):
    """One of all ranks, removed afterwards."""
    from sherd import _together  # pylint: disable=import-outside-toplevel
    mine = tempfile.mkdtemp() if world.rank == 0 else None
    folder = _together.gathered(world, mine)[0]
    yield folder
    world.barrier()
    if world.rank == 0:
        shutil.rmtree(folder)


class Hooks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import sherd  # pylint: disable=import-outside-toplevel
        cls.sherd = sherd
        dist.init_process_group("gloo")
        cls.world = sherd.World.from_process_group()

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def replicated(self, register=None, **options):
        """Gradients, and what the handle reports of the hook."""
        model = make()
        handle = self.sherd.replicate(model, self.world, **options)
        if register:
            handle.register_comm_hook(*register)
        gradients = train(model, list(model.parameters()))
        report = handle.report()
        self.assertEqual(report.backwards, STEPS)
        self.assertTrue(of_all_ranks(self.world, gradients))
        handle.close()
        return gradients, report

    def close_to(self, found, expected, **tolerance):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs, **tolerance)

    def test_hooks_of_sherd(self):
        hooks = self.sherd.hooks
        mean, _ = self.replicated()
        for hook, tolerance in (
                (hooks.all_reduce_mean(), {}),
                (hooks.compress(torch.bfloat16), {"rtol": 0.05, "atol": 0.005}),
                (hooks.compress(torch.float16), {"rtol": 0.01, "atol": 0.001}),
                (hooks.quantise(scale="tensor"), {"rtol": 0.1, "atol": 0.01}),
                (hooks.power_sgd(start_step=100), {}),
                (hooks.post_local_sgd(), {})):
            with self.subTest(hook=hook.name):
                found, report = self.replicated(hook=hook)
                self.assertEqual(report.hook, hook.name)
                self.assertGreater(report.hook_bytes, 0)
                self.close_to(found, mean, **tolerance)

    def test_b28_gathers_are_quantised(self):
        hook = self.sherd.hooks.quantise_gathers(block=64)
        losses, sent = [], []
        for gather_hook in (None, hook):
            model = make()
            handle = self.sherd.fully_shard(
                model, self.world, exchange="messages", gather_hook=gather_hook)
            losses.append(torch.stack(train(model, handle.parameters())[:1]).norm())
            sent.append(handle.report().gather_sent_bytes)
            handle.close()
        torch.testing.assert_close(losses[1], losses[0], rtol=0.1, atol=0.01)
        if ranks.size() > 1:
            self.assertGreater(sent[1], 0)
            self.assertLess(2 * sent[1], sent[0])
        with self.assertRaises(self.sherd.InvalidArgumentError):
            self.sherd.hooks.quantise_gathers(block=0)

    def test_a_function_is_a_hook(self):
        seen = []

        def sign(bucket, group):
            self.assertEqual((group.rank, group.size), (ranks.rank(), ranks.size()))
            self.assertEqual(
                sum(gradient.numel() for _, gradient in bucket.parameters),
                len(bucket.gradients))
            self.assertFalse(torch.is_grad_enabled())
            bucket.gradients.sign_()
            group.all_reduce_mean(bucket.gradients)
            seen.append((bucket.step, bucket.index, bucket.last, group))

        found, report = self.replicated(hook=sign)
        self.assertIn("sign", report.hook)
        allowed = {index / ranks.size() for index in range(-ranks.size(), ranks.size() + 1)}
        self.assertLessEqual(set(torch.cat([g.flatten() for g in found]).tolist()), allowed)
        self.assertEqual(sorted({step for step, *_ in seen}), list(range(STEPS)))
        with self.assertRaisesRegex(
                self.sherd.FailedPreconditionError, "after it has returned"):
            seen[0][3].all_gather(torch.ones(1))

    def test_a_function_may_assign_the_gradients(self):
        def mean(bucket, group):
            rows = group.all_gather(bucket.gradients)
            bucket.gradients = sum(rows) / len(rows)

        def flat(bucket, _group):
            bucket.gradients = torch.zeros(1)

        plain, _ = self.replicated()
        found, _ = self.replicated(hook=mean)
        self.close_to(found, plain)
        model = make()
        world = self.sherd.World.from_process_group(dist.new_group())
        handle = self.sherd.replicate(model, world, hook=flat)
        with self.assertRaisesRegex(self.sherd.Error, "has assigned gradients: expected"):
            model(torch.ones(1, 16)).sum().backward()
        handle.close()

    def test_a_function_may_let_models_drift_apart(self):
        """Checkpoints are then those of rank 0, where others have other values."""
        def of_this_rank(_bucket, _group):
            pass

        of_this_rank.keeps_models_equal = False
        self.assertTrue(self.sherd.hooks.all_reduce_mean().keeps_models_equal)
        model = make()
        handle = self.sherd.replicate(model, self.world, hook=of_this_rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.assertFalse(of_all_ranks(self.world, train(model, list(model.parameters()))))
        mine = [parameter.detach().clone() for parameter in model.parameters()]
        with shared_folder(self.world) as folder:
            self.sherd.save(folder, 1, handle, optimizer)
            self.sherd.load(folder, handle, optimizer)
        for ours, saved in zip(mine, model.parameters(), strict=True):
            if ranks.rank() == 0:
                self.assertTrue(torch.equal(ours, saved))
        self.assertTrue(of_all_ranks(
            self.world, [parameter.detach() for parameter in model.parameters()]))
        handle.close()

    def test_hooks_of_pytorch(self):
        mean, _ = self.replicated()
        cases = [
            ((None, default_hooks.allreduce_hook), {}),
            ((dist.group.WORLD, default_hooks.allreduce_hook), {}),
            ((None, default_hooks.bf16_compress_hook), {"rtol": 0.05, "atol": 0.005})]
        if importlib.util.find_spec("numpy"):  # Which PyTorch's PowerSGD needs.
            state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=STEPS + 1)
            cases.append(((state, powerSGD_hook.powerSGD_hook), {}))
        for register, tolerance in cases:
            with self.subTest(hook=register[1].__name__):
                found, report = self.replicated(register)
                self.assertEqual(report.hook, register[1].__name__)
                self.close_to(found, mean, **tolerance)

    def test_a_hook_of_pytorch_reads_parameters(self):
        model = make()
        handle = self.sherd.replicate(model, self.world)
        norms = []

        def hook(_state, bucket):
            norms.extend(p.norm().item() for p in bucket.parameters())
            return bucket.buffer()

        handle.register_comm_hook(None, hook)
        model(torch.ones(1, 16)).sum().backward()
        self.assertEqual(
            sorted(norms), sorted(p.norm().item() for p in model.parameters()))
        handle.close()

    def test_what_a_hook_raises_ends_the_training_of_all(self):
        def fail(bucket, group):
            if ranks.rank() == ranks.size() - 1:
                raise ValueError("no more")
            group.all_reduce_mean(bucket.gradients)

        model = make()
        # Of its own: a rank that gives up is lost to the others.
        world = self.sherd.World.from_process_group(dist.new_group())
        handle = self.sherd.replicate(model, world, hook=fail)
        with self.assertRaisesRegex(self.sherd.Error, f"no more|rank {ranks.size() - 1}"):
            model(torch.ones(1, 16)).sum().backward()
        handle.close()

    def test_what_is_no_hook_is_refused(self):
        handle = self.sherd.replicate(make(), self.world)
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "callable, found a dict"):
            handle.register_comm_hook({}, {})
        with handle.join():
            with self.assertRaisesRegex(
                    self.sherd.FailedPreconditionError, "set_hook.*between two steps"):
                handle.register_comm_hook(None, default_hooks.allreduce_hook)
        handle.close()

    def test_sharded_models_take_hooks(self):
        def mean(bucket, group):
            if bucket.cuts:
                group.reduce_scatter_mean(bucket.gradients, bucket.cuts)
            else:
                group.all_reduce_mean(bucket.gradients)

        model = make()
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "reduces to shards"):
            self.sherd.fully_shard(model, self.world, hook=mean)
        plain, _ = self.sharded(None)
        mean.reduces_to_shards = True
        for hook in (mean, self.sherd.hooks.compress(torch.bfloat16)):
            found, report = self.sharded(hook)
            self.assertEqual(report.backwards, STEPS)
            self.close_to(found, plain, rtol=0.05, atol=0.005)

    def sharded(self, hook):
        model = make()
        handle = self.sherd.fully_shard(model, self.world, hook=hook)
        gradients = train(model, handle.parameters())
        report = handle.report()
        handle.close()
        return gradients, report

    def checkpointed(self, shard, make_hook, resumed):
        """Gradients after 2 * STEPS steps, in the middle of which the model is saved; or
        of a model with another hook object that goes on from there."""
        model = make()
        if not resumed:
            torch.nn.init.normal_(model[0].weight, generator=torch.Generator().manual_seed(1))
        hook = make_hook()
        handle = shard(model, hook)
        parameters = (handle.parameters() if hasattr(handle, "parameters")
                      else list(model.parameters()))
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        if resumed:
            report = self.sherd.load(self.folder, handle, optimizer)
            self.assertEqual((report.step, report.missing, report.unexpected), (1, [], []))
        else:
            train(model, parameters)
            self.sherd.save(self.folder, 1, handle, optimizer)
        gradients = train(model, parameters)
        state = hook.state()
        handle.close()
        return gradients, state

    def test_what_a_hook_remembers_is_in_checkpoints(self):
        hooks = self.sherd.hooks
        replicas = self.sherd.Mesh(self.world, ranks.size(), 1)
        for name, shard, make_hook in (
                ("replicate", lambda m, h: self.sherd.replicate(m, self.world, hook=h),
                 lambda: hooks.power_sgd(start_step=1)),
                ("replicas", lambda m, h: self.sherd.fully_shard(m, replicas, hook=h),
                 hooks.quantise),
                ("whole", lambda m, h: self.sherd.fully_shard(
                    m, self.world, strategy="no_shard", hook=h),
                 lambda: hooks.power_sgd(start_step=1))):
            with self.subTest(over=name), shared_folder(self.world) as self.folder:
                expected, mine = self.checkpointed(shard, make_hook, False)
                found, theirs = self.checkpointed(shard, make_hook, True)
                for ours, plain in zip(found, expected, strict=True):
                    self.assertTrue(torch.equal(ours, plain))
                self.assertGreater(len(mine), 1)
                self.assertEqual([key for key, _ in mine], [key for key, _ in theirs])
                for (_, ours), (_, plain) in zip(mine, theirs):
                    self.assertTrue(torch.equal(ours, plain))
                # Another hook does not want it.
                other = make()
                handle = shard(other, hooks.compress(torch.bfloat16))
                report = self.sherd.load(self.folder, handle)
                self.assertTrue(all("hook" in name for name in report.unexpected
                                    if "optimizer" not in name), report.unexpected)
                handle.close()

    def test_a_function_synchronises_buffers(self):
        model = torch.nn.BatchNorm1d(3)
        calls = []

        def mean(buffers, group):
            calls.append(sorted(buffers))
            group.all_reduce_mean(buffers["running_mean"])

        handle = self.sherd.replicate(model, self.world, buffer_hook=mean)
        model(torch.full((2, 3), float(ranks.rank()))).sum().backward()
        self.assertEqual(
            calls, [["num_batches_tracked", "running_mean", "running_var"]])
        expected = 0.1 * sum(range(ranks.size())) / ranks.size()
        torch.testing.assert_close(model.running_mean, torch.full((3,), expected))
        handle.close()


if __name__ == "__main__":
    ranks.main()
