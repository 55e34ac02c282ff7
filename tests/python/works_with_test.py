# SPDX-License-Identifier: Apache-2.0
"""What else of PyTorch a sharded module works with: hooks, autocast, functional
calls, parametrisations, copies, scopes; each against a plain module."""

import copy
import types
import unittest

import ranks
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(),
                         nn.Linear(16, 4))


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(5, 8, generator=generator)


def loss_of(model, x):
    return model(x).float().square().mean()


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.2)


def train(model, parameters, batches, loss=loss_of, steps=4):
    """Losses of some steps; `batches` are those of the ranks that this one stands for."""
    optimizer = sgd(parameters)
    losses = []
    for step in range(steps):
        each = [loss(model, batch_of(step, rank)) for rank in batches]
        (sum(each) / len(each)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(each[ranks.rank() if len(each) > 1 else 0].item())
    return losses


class WorksWith(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def check(self, make, loss=loss_of, tolerance=1e-5, **options):
        """Trains a plain and a sharded model, and returns the sharded one's handle."""
        plain = make()
        expected = train(plain, plain.parameters(), range(ranks.size()), loss)
        model = make()
        handle = self.sherd.fully_shard(model, **options)
        found = train(model, handle.parameters(), [ranks.rank()], loss)
        for ours, theirs in zip(found, expected):
            self.assertLessEqual(abs(ours - theirs), tolerance, (found, expected))
        with handle.summon_full_parameters(read_only=True) as full:
            for name, theirs in plain.named_parameters():
                torch.testing.assert_close(
                    full.tensor(name), theirs.detach(), rtol=0, atol=10 * tolerance)
        return handle

    def test_hooks_of_modules_and_tensors(self):
        seen = []

        def make():
            model = mlp()
            model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
            model[2].register_forward_hook(lambda m, args, out: out + m.weight.mean())
            model[4].register_full_backward_pre_hook(lambda m, grads: seen.append("pre"))
            model[4].register_full_backward_hook(lambda m, ins, outs: seen.append("post"))
            model[0].weight.register_hook(lambda gradient: gradient * 0.5)
            return model

        self.check(make).close()
        self.assertEqual(seen[-2:], ["pre", "post"])

    def check_late_hooks(self, wrap, after_forward):
        """Of the parameters that get their gradients first and last."""
        plain = mlp()
        train(plain, plain.parameters(), range(ranks.size()))
        model = mlp()
        handle = wrap(model)
        seen, losses = [], []

        def loss(module, x):
            value = loss_of(module, x) if after_forward else None
            losses.append(0)
            if len(losses) == 2:
                for parameter in (model[0].weight, model[4].bias):
                    parameter.register_post_accumulate_grad_hook(
                        lambda p: seen.append(p.grad.shape == p.shape))
            return value if after_forward else loss_of(module, x)

        sharded = wrap is self.sherd.fully_shard
        train(model, (handle if sharded else model).parameters(), [ranks.rank()], loss)
        self.assertEqual(seen, 2 * (len(losses) - 1) * [True])
        found = handle.state_dict() if sharded else model.state_dict()
        for name, theirs in plain.state_dict().items():
            torch.testing.assert_close(found[name], theirs, rtol=0, atol=1e-5)
        handle.close()

    def test_hooks_that_are_set_on_parameters_later(self):
        for wrap in (self.sherd.fully_shard, self.sherd.replicate):
            self.check_late_hooks(wrap, after_forward=False)
            self.check_late_hooks(wrap, after_forward=True)

    def test_hooks_that_are_set_under_no_sync(self):
        for wrap in (self.sherd.fully_shard, self.sherd.replicate):
            plain = mlp()
            model = mlp()
            handle = wrap(model)
            x = [batch_of(0, rank) for rank in range(ranks.size())]
            (2 * sum(loss_of(plain, each) for each in x) / ranks.size()).backward()
            with handle.no_sync():
                loss = loss_of(model, x[ranks.rank()])
                model[4].bias.register_post_accumulate_grad_hook(lambda p: None)
                loss.backward()
            loss_of(model, x[ranks.rank()]).backward()
            sharded = wrap is self.sherd.fully_shard
            sgd((handle if sharded else model).parameters()).step()
            sgd(plain.parameters()).step()
            found = handle.state_dict() if sharded else model.state_dict()
            for name, theirs in plain.state_dict().items():
                torch.testing.assert_close(found[name], theirs, rtol=0, atol=1e-5)
            handle.close()

    def test_autocast(self):
        def loss(model, x):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x)
                assert out.dtype == torch.bfloat16
            return out.float().square().mean()
        self.check(mlp, loss, tolerance=5e-3).close()

    def test_functional_call(self):
        def own(model, x):
            values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
            return torch.func.functional_call(model, values, (x,)).square().mean()
        self.check(mlp, own).close()
        model = mlp()
        handle = self.sherd.fully_shard(model)
        others = {name: torch.full(p.shape, 0.1, requires_grad=True)
                  for name, p in model.named_parameters()}
        out = torch.func.functional_call(model, others, (batch_of(0, 0),)).sum()
        out.backward()
        self.assertTrue(all(p.grad is not None for p in others.values()))
        self.assertTrue(all(p.grad is None for p in handle.parameters()))
        handle.close()

    def test_parametrisations(self):
        def weight_norm():
            model = mlp()
            parametrizations.weight_norm(model[2])
            return model

        def orthogonal():
            model = mlp()
            parametrizations.orthogonal(model[2])
            return model

        def spectral_norm():
            model = mlp()
            parametrizations.spectral_norm(model[0])
            return model
        self.check(weight_norm).close()
        self.check(orthogonal).close()
        # Its buffers are written in forward, twice by who stands for two ranks.
        if ranks.size() == 1:
            self.check(spectral_norm).close()

    def test_copies_made_before(self):
        first = mlp()
        second = copy.deepcopy(first)
        handles = [self.sherd.fully_shard(model) for model in (first, second)]
        x = batch_of(0, 0)
        self.assertTrue(torch.equal(first(x), second(x)))
        for handle in handles:
            handle.close()

    def test_conversions_that_change_nothing(self):
        def convert(model):
            for converted in (model.to("cpu"), model.float(), model.cpu(),
                              model.to(torch.float32)):
                self.assertIs(converted, model)

        model, plain = mlp(), mlp()
        handle = self.sherd.fully_shard(model)
        for module, parameters, each in (
                (model, handle.parameters(), [ranks.rank()]),
                (plain, plain.parameters(), range(ranks.size()))):
            optimizer = sgd(parameters)
            for step in range(3):
                convert(module)
                losses = [loss_of(module, batch_of(step, rank)) for rank in each]
                (sum(losses) / len(losses)).backward()
                convert(module)  # Gradients are kept.
                optimizer.step()
                convert(module)
                optimizer.zero_grad()
        convert(model)
        for name, value in handle.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name])
        with self.assertRaisesRegex(self.sherd.Error, "the module before fully_shard"):
            model.double()
            loss_of(model, batch_of(0, 0).double())
        handle.close()

    def test_evaluation(self):
        model = mlp()
        x = batch_of(0, 0)
        expected = model(x)
        handle = self.sherd.fully_shard(model)
        with torch.no_grad():
            model.eval()
            self.assertTrue(torch.allclose(model(x), expected, atol=1e-6))
        with torch.inference_mode():
            self.assertTrue(torch.allclose(model(x), expected, atol=1e-6))
        model.train()
        loss_of(model, x).backward()
        self.assertIsNotNone(handle.parameters()[0])
        handle.close()

    def test_mixed_precision(self):
        options = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        seen = []

        def make():
            model = mlp()
            model[4].register_forward_hook(lambda m, args, out: seen.append(out.dtype))
            return model
        self.check(make, tolerance=1e-2, mixed_precision=options).close()
        self.assertEqual(seen[-1], torch.bfloat16)

    def test_b6_what_a_module_returns_is_cast_whatever_is_in_it(self):
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = mlp()

            def forward(self, values):
                return {"all": self.inner(values), "count": torch.tensor(3)}

        halves = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        options = self.sherd.UnitOptions(output_dtype=torch.float32)
        model = Pair()
        inputs = torch.randn(3, next(model.parameters()).shape[1])
        handle = self.sherd.fully_shard(
            model, mixed_precision=halves,
            units=lambda name, module: options if module is model else False)
        found = model(inputs)
        self.assertEqual(found["all"].dtype, torch.float32)
        self.assertEqual(found["count"].dtype, torch.int64)
        found["all"].sum().backward()
        handle.close()
        self.assertFalse(model._forward_hooks)

    def test_an_accelerator_for_another_device_is_refused(self):
        from sherd.integrations import accelerate  # pylint: disable=import-outside-toplevel
        one_gpu = types.SimpleNamespace(
            distributed_type="DistributedType.NO", num_processes=1, _models=[],
            device=torch.device("cuda"))
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "found one for the device cuda"):
            accelerate.shard(one_gpu)

    def test_inputs_of_units_are_cast(self):
        """As FSDP2 does, before a module's own code sees them."""
        seen = {}

        class Block(nn.Module):
            def __init__(self, name):
                super().__init__()
                self.name, self.inner = name, nn.Linear(4, 4)

            def forward(self, values, *, other):
                seen[self.name] = (values.dtype, other["float"].dtype, other["int"].dtype)
                return self.inner(values.to(self.inner.weight.dtype)).float()

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.cast, self.kept = Block("cast"), Block("kept")
                self.norm = nn.BatchNorm1d(4)

            def forward(self, values, other):
                values = self.cast(values, other=other)
                self.norm.register_forward_pre_hook(
                    lambda _, args: seen.update(norm=args[0].dtype))
                return self.kept(self.norm(values), other=other)

        halves = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        as_they_are = self.sherd.UnitOptions(mixed_precision=self.sherd.MixedPrecision(
            param_dtype=torch.bfloat16, cast_forward_inputs=False))
        torch.manual_seed(0)  # Ranks make the same module.
        model = Net()
        handle = self.sherd.fully_shard(
            model, mixed_precision=halves,
            units=lambda name, _: as_they_are if name == "kept" else name in (
                "cast", "norm"))
        other = {"float": torch.ones(1), "int": torch.ones(1, dtype=torch.int64)}
        model(torch.randn(3, 4), dict(other)).sum().backward()
        self.assertEqual(seen["cast"], (torch.bfloat16, torch.bfloat16, torch.int64))
        self.assertEqual(seen["kept"], (torch.float32, torch.bfloat16, torch.int64))
        self.assertEqual(seen["norm"], torch.float32)
        handle.close()
        self.assertFalse(model.cast._forward_pre_hooks)

    def test_nothing_is_cast_for_what_is_ignored_or_no_unit(self):
        class Teacher(nn.Module):
            def __init__(self):
                super().__init__()
                self.h = nn.ModuleList([nn.Linear(4, 4)])

            def forward(self, values):
                return self.h[0](values)

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(0)
                self.teacher = Teacher()
                self.h = nn.ModuleList([nn.Linear(4, 4)])
                self.losses = nn.ModuleList([nn.CrossEntropyLoss()])

            def forward(self, values):
                aims = self.teacher(values.float())
                seen.update(teacher=aims.dtype)
                return self.losses[0](self.h[0](values).float(), aims.softmax(-1))

        halves = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        to_halves = self.sherd.UnitOptions(output_dtype=torch.bfloat16)

        def by_class(_name, module):
            return to_halves if isinstance(module, nn.Linear) else isinstance(
                module, nn.CrossEntropyLoss)

        for units in (None, by_class):
            for ignored in ("teacher", "teach*.h", "teacher.h.?"):
                seen, model = {}, Net()
                for name in ("h", "losses"):
                    getattr(model, name)[0].register_forward_pre_hook(
                        lambda _, args, name=name: seen.update({name: args[0].dtype}))
                handle = self.sherd.fully_shard(
                    model, mixed_precision=halves, units=units, ignored=[ignored])
                model(torch.randn(3, 4)).backward()
                self.assertEqual(seen, {"teacher": torch.float32, "h": torch.bfloat16,
                                        "losses": torch.float32})
                handle.close()
        # Its parameters may be ignored one by one.
        model = Net()
        handle = self.sherd.fully_shard(model, mixed_precision=halves, ignored=[
            "teacher.h.0.weight", "teacher.h.0.bias"])
        model(torch.randn(3, 4)).backward()
        handle.close()

    def in_mixed_precision(self, values):
        """A module whose units compute in bfloat16, its handle, and what the plain
        module makes of the values."""
        model = mlp()
        with torch.no_grad():
            expected = model(values)
        handle = self.sherd.fully_shard(model, mixed_precision=self.sherd.MixedPrecision(
            param_dtype=torch.bfloat16))
        return model, handle, expected

    def test_evaluation_in_full_precision(self):
        values = batch_of(0, 0)
        model, handle, expected = self.in_mixed_precision(values)
        for scope in (handle.full_precision, lambda: handle.summon_full_parameters(
                read_only=True, full_precision=True)):
            with torch.no_grad():
                with scope():
                    torch.testing.assert_close(model(values), expected)
                self.assertEqual(model(values).dtype, torch.bfloat16)
        handle.close()

    def test_a_compiled_module_in_mixed_precision_is_one_graph(self):
        """Code that casts inputs is not that of full precision."""
        values = batch_of(0, 0)
        model, handle, expected = self.in_mixed_precision(values)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        with torch.no_grad():
            self.assertEqual(compiled(values).dtype, torch.bfloat16)
            with handle.full_precision():
                torch.testing.assert_close(compiled(values), expected)
            self.assertEqual(compiled(values).dtype, torch.bfloat16)
            scope = handle.summon_full_parameters(read_only=True, full_precision=True)
            torch.testing.assert_close(compiled(values), expected)
            scope.close()
            self.assertEqual(compiled(values).dtype, torch.bfloat16)
        loss_of(compiled, values).backward()
        handle.close()

    def test_transforms_of_torch_func_may_gather(self):
        halves = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        x = batch_of(0, 0)
        for options in ({}, {"exchange": "messages"}, {"mixed_precision": halves}):
            for transform in (
                    lambda model: torch.func.jvp(model, (x,), (x,))[1],
                    lambda model: torch.func.grad(lambda x: model(x).sum())(x),
                    lambda model: torch.func.vmap(model)(x)):
                plain, model = mlp(), mlp()
                handle = self.sherd.fully_shard(model, **options)
                tolerance = 1e-5 if "mixed_precision" not in options else 0.03
                torch.testing.assert_close(
                    transform(model).float(), transform(plain), rtol=tolerance,
                    atol=tolerance)
                model(x).sum().backward()
                handle.close()

    def test_gradients_by_autograd_grad(self):
        """Neither autograd.grad with respect to inputs nor higher derivatives of
        them touch the slices' gradients."""
        plain, model = mlp(), mlp()
        handle = self.sherd.fully_shard(model)
        grads = []
        for module in (plain, model):
            x = batch_of(0, 0).requires_grad_()
            first, = torch.autograd.grad(module(x).sum(), x, create_graph=True)
            second, = torch.autograd.grad(first.square().sum(), x)
            grads.append((first.detach(), second))
        for ours, theirs in zip(grads[1], grads[0]):
            torch.testing.assert_close(ours, theirs)
        self.assertTrue(all(part.grad is None for part in handle.parameters()))
        handle.close()

    def test_two_backwards_over_a_retained_graph(self):
        for by in (self.sherd.fully_shard, self.sherd.replicate):
            plain, model = mlp(), mlp()
            handle = by(model)
            for module in (plain, model):
                loss = loss_of(module, batch_of(0, 0))
                loss.backward(retain_graph=True)
                (2 * loss).backward()
            if by is self.sherd.fully_shard:
                with handle.summon_full_parameters(
                        with_gradients=True, read_only=True) as full:
                    found = {name: full.gradient(name).clone()
                             for name, _ in model.named_parameters()}
            else:
                found = {name: p.grad for name, p in model.named_parameters()}
            for name, parameter in plain.named_parameters():
                torch.testing.assert_close(found[name], parameter.grad)
            handle.close()

    def test_gradient_penalty(self):
        def loss(model, x):
            x = x.requires_grad_()
            out = model(x).square().mean()
            slope, = torch.autograd.grad(out, x, create_graph=True)
            return out + slope.square().sum()
        self.check(mlp, loss).close()

    def test_frozen_parameters_and_dtypes(self):
        def make():
            model = mlp()
            model[0].requires_grad_(False)
            model[2].weight.requires_grad_(False)
            return model
        plain = make()
        handle = self.check(make)
        self.assertEqual(
            [p.requires_grad for p in handle.module.parameters()],
            [p.requires_grad for p in plain.parameters()])
        handle.close()

    def test_join(self):
        for by in (self.sherd.fully_shard, self.sherd.replicate):
            model = mlp()
            handle = by(model)
            sharded = by is self.sherd.fully_shard
            optimizer = sgd((handle if sharded else model).parameters())

            def after_backward():
                optimizer.step()  # pylint: disable=cell-var-from-loop
                optimizer.zero_grad()  # pylint: disable=cell-var-from-loop
            with handle.join(after_backward if sharded else None):
                for step in range(2 + ranks.rank()):
                    loss_of(model, batch_of(step, ranks.rank())).backward()
                    after_backward()
            if ranks.size() > 1:
                self.assertEqual(handle.report().backwards, 1 + ranks.size())
            handle.close()

    def test_compiled_code_of_operators(self):
        """Kernels that read a parameter at its address, as inductor's do, get an error."""
        def loss(model, x):
            return loss_of(torch.compile(model, backend="aot_eager"), x)
        handle = self.check(mlp, loss)
        handle.reshard()
        if ranks.size() > 1:
            weight = handle.module[0].weight
            if torch.__version__ < "2.12":  # There a pointer is null instead of an error.
                self.assertEqual(weight.data_ptr(), 0)
            else:
                for read in (weight.data_ptr, weight.is_shared,
                             weight.untyped_storage().is_shared):
                    with self.assertRaisesRegex(RuntimeError, "0.weight"):
                        read()
        self.assertFalse(torch.ones(1).is_shared())
        self.assertTrue(torch.ones(1).share_memory_().is_shared())
        handle.close()

    def test_the_profiler_of_pytorch_works_without_stacks(self):
        from torch import profiler  # pylint: disable=C0415
        model = mlp()
        handle = self.sherd.fully_shard(model)
        if ranks.size() > 1:
            with self.assertRaisesRegex(RuntimeError, "profiler needs with_stack=False"):
                with profiler.profile(with_stack=True):
                    model(batch_of(0, ranks.rank()))
        with profiler.profile(record_shapes=True, profile_memory=True, with_modules=True,
                              with_flops=True):
            loss_of(model, batch_of(0, ranks.rank())).backward()
        handle.close()

    def test_parameters_are_read_after_a_backward_without_a_step(self):
        for exchange in ("shared_memory", "messages"):
            plain, model = mlp(), mlp()
            handle = self.sherd.fully_shard(model, exchange=exchange)
            optimizer = sgd(handle.parameters())
            loss_of(model, batch_of(0, 0)).backward()
            with handle.summon_full_parameters(read_only=True):
                for ours, theirs in zip(model.parameters(), plain.parameters()):
                    self.assertTrue(torch.equal(ours, theirs))
            optimizer.step()
            optimizer.zero_grad()
            train(plain, plain.parameters(), [0], steps=1)
            loss_of(model, batch_of(1, 0)).backward()
            optimizer.zero_grad()  # This step is left out.
            handle.publish()
            with torch.no_grad():
                torch.testing.assert_close(
                    model(batch_of(2, 0)), plain(batch_of(2, 0)))
            handle.close()

    def test_averaged_weights_are_evaluated(self):
        """Those of PyTorch's AveragedModel over one process."""
        from torch.optim import swa_utils  # pylint: disable=C0415
        values = batch_of(0, 0)  # The same on all ranks.
        for wrap in (
                lambda module: self.sherd.fully_shard(module, exchange="shared_memory"),
                lambda module: self.sherd.fully_shard(module, exchange="messages"),
                self.sherd.replicate):
            plain, model = mlp(), mlp()
            expected = swa_utils.AveragedModel(
                plain, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.75))
            expected.update_parameters(plain)  # The first call copies.
            handle = wrap(model)
            average = self.sherd.WeightAverage(handle, decay=0.75)
            optimizers = [sgd(handle.parameters() if hasattr(handle, "publish")
                              else model.parameters()), sgd(plain.parameters())]
            for _ in range(3):
                for module, optimizer in zip((model, plain), optimizers):
                    loss_of(module, values).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                average.update()
                expected.update_parameters(plain)
                with torch.no_grad():
                    before = model(values)
                    average.swap()
                    torch.testing.assert_close(model(values), expected(values))
                    with self.assertRaisesRegex(self.sherd.Error, "second swap"):
                        average.update()
                    average.swap()
                    self.assertTrue(torch.equal(model(values), before))
            average.reset()
            average.swap()
            with torch.no_grad():
                self.assertTrue(torch.equal(model(values), before))
            average.swap()
            for mean in average.tensors().values():
                mean.zero_()  # As averages that were saved are copied into them.
            average.swap()
            with torch.no_grad():
                self.assertTrue(torch.equal(model(values), torch.zeros(5, 4)))
            average.swap()
            handle.close()

    def test_reentrant_checkpoints_end_one_backward(self):
        """Each is a backward within the backward; the step ends with the outer one."""
        from torch.utils.checkpoint import checkpoint  # pylint: disable=C0415

        def loss(model, x):
            x = x.requires_grad_()
            for layer in model:
                x = checkpoint(layer, x, use_reentrant=True)
            return x.square().mean()
        handle = self.check(mlp, loss)
        # One rank exchanges nothing, and counts nothing.
        self.assertEqual(handle.report().backwards, 4 if ranks.size() > 1 else 0)
        handle.close()

    def test_options_of_replicate(self):
        plain = mlp()
        expected = train(plain, plain.parameters(), range(ranks.size()))
        for options in ({"bucket_bytes": 200, "first_bucket_bytes": 100},
                        {"static_graph": True}, {"gradient_as_bucket_view": False},
                        {"broadcast_buffers": False}, {"reductions_under_way_max": 1},
                        {"init_sync": False}):
            with self.subTest(**options):
                model = mlp()
                handle = self.sherd.replicate(model, **options)
                found = train(model, model.parameters(), [ranks.rank()])
                for ours, theirs in zip(found, expected):
                    self.assertAlmostEqual(ours, theirs, delta=1e-5)
                handle.close()


if __name__ == "__main__":
    ranks.main()
