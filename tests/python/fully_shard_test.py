# SPDX-License-Identifier: Apache-2.0
"""sherd.fully_shard trains unmodified modules as one process would."""

import copy
import math
import pickle
import unittest

import ranks
import torch
from torch import nn
from torch.distributed.algorithms.join import Join

STEPS = 4


def decoder():
    """Embedding, two layers of attention, a head that is the embedding."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
              for _ in range(2)]
    model = nn.Sequential(nn.Embedding(64, 32), *layers, nn.Linear(32, 64, bias=False))
    model[3].weight = model[0].weight
    return model


def batch_of(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(64, (4, 17), generator=generator)


def loss_of(model, tokens):
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def alone(model, optimizer, clip=None, steps=STEPS):
    """Losses, and norms, of one process that takes the batches of all ranks."""
    losses, norms = [], []
    for step in range(steps):
        of_ranks = [loss_of(model, batch_of(step, rank)) for rank in range(ranks.size())]
        (sum(of_ranks) / ranks.size()).backward()
        if clip:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(of_ranks[ranks.rank()].item())
    return losses, norms


def together(model, handle, optimizer, clip=None, steps=STEPS):
    """The same of this rank among others."""
    losses, norms = [], []
    for step in range(steps):
        loss = loss_of(model, batch_of(step, ranks.rank()))
        loss.backward()
        if clip:
            norms.append(handle.clip_grad_norm(clip))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, norms


class Halving(torch.optim.SGD):
    """Writes once more after the step of its base."""
    fails = False

    def step(self, closure=None):
        super().step(closure)
        if self.fails:
            raise ValueError("no step")
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.mul_(0.5)


class FullyShard(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def same(self, ours, theirs, tolerance=2e-5):
        self.assertEqual(len(ours), len(theirs))
        for a, b in zip(ours, theirs):
            self.assertLessEqual(abs(a - b), tolerance * max(1.0, abs(b)))

    def test_trains_as_one_process_would(self):
        for exchange in ("shared_memory", "messages"):
            plain = decoder()
            expected = alone(
                plain, torch.optim.AdamW(plain.parameters(), lr=1e-2, eps=1e-4), clip=0.5)
            model = decoder()
            handle = self.sherd.fully_shard(model, exchange=exchange)
            optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2, eps=1e-4)
            found = together(model, handle, optimizer, clip=0.5)
            self.same(found[0], expected[0])
            self.same(found[1], expected[1])
            with handle.summon_full_parameters(read_only=True) as full:
                for name, parameter in plain.named_parameters():
                    self.assertTrue(torch.allclose(
                        full.tensor(name), parameter, atol=1e-5), name)
            handle.close()

    def test_the_optimizers_of_sherd_give_those_of_torch(self):
        for make, plain_make in (
                (lambda h: self.sherd.AdamW(h, lr=1e-2),
                 lambda p: torch.optim.AdamW(p, lr=1e-2)),
                (lambda h: self.sherd.SGD(h, lr=1e-2, momentum=0.9),
                 lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9))):
            plain = decoder()
            expected = alone(plain, plain_make(plain.parameters()))
            model = decoder()
            handle = self.sherd.fully_shard(model)
            self.same(together(model, handle, make(handle))[0], expected[0])
            handle.close()

    def test_what_a_derived_optimizer_writes_after_its_base_is_published(self):
        # Parameters are used in bfloat16, of which publishing makes new values.
        halves = self.sherd.MixedPrecision(param_dtype=torch.bfloat16)
        for exchange in ("shared_memory", "messages"):
            plain = decoder()
            torch.optim.SGD(plain.parameters())  # From now on its step() has hooks, too.
            expected = alone(plain, Halving(plain.parameters(), lr=0.1), steps=2)
            model = decoder()
            handle = self.sherd.fully_shard(
                model, exchange=exchange, strategy="no_shard", mixed_precision=halves)
            optimizer = Halving(handle.parameters(), lr=0.1)
            found = together(model, handle, optimizer, steps=2)
            self.same(found[0], expected[0], 0.02)
            # A step that raises leaves nothing behind; there are no gradients now.
            optimizer.fails = True
            self.assertRaises(ValueError, optimizer.step)
            optimizer.fails = False
            expected = alone(plain, Halving(plain.parameters(), lr=0.1), steps=2)
            found = together(model, handle, optimizer, steps=2)
            self.same(found[0], expected[0], 0.02)
            handle.close()

    def test_groups_of_the_optimizers_of_sherd(self):
        sherd = self.sherd
        for names in ("*.bias", ["*.bias"], ("0.bias", "1.*s")):
            model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
            for parameter in model.parameters():
                nn.init.constant_(parameter, 0.5)
            handle = sherd.fully_shard(model)
            before = handle.state_dict()
            optimizer = sherd.SGD(
                handle, lr=0.5, groups=[{"names": names, "lr_scale": 0.0}])
            model(torch.ones(4, 3)).sum().backward()
            optimizer.step()
            for name, value in handle.state_dict().items():
                self.assertEqual(
                    torch.equal(value, before[name]), name.endswith("bias"), name)
            handle.close()
        handle = sherd.fully_shard(nn.Linear(3, 5))
        for make in (sherd.AdamW, sherd.SGD):
            for wrong, found in (
                    ({"names": "bias", "lr": 1e-3}, "found the keys names, lr"),
                    ({"weight_decay": 0.0}, "found the keys weight_decay"),
                    ({}, "found the keys none"), ("bias", "found a str")):
                with self.assertRaisesRegex(
                        sherd.InvalidArgumentError,
                        r"groups\[1\]: expected .*names.*lr_scale and weight_decay, " + found):
                    make(handle, groups=[{"names": "bias"}, wrong])
        handle.close()

    def test_both_kinds_of_torch_checkpointing(self):
        from torch.utils.checkpoint import checkpoint
        for reentrant in (False, True):
            plain = decoder()
            expected = alone(plain, torch.optim.SGD(plain.parameters(), lr=0.1))

            class Checkpointed(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = nn.ModuleList(decoder())

                def forward(self, tokens):
                    x = self.layers[0](tokens)
                    for layer in self.layers[1:-1]:
                        x = checkpoint(
                            layer, x,
                            use_reentrant=reentrant)  # pylint: disable=W0640
                    return self.layers[-1](x)

            model = Checkpointed()
            handle = self.sherd.fully_shard(model)
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
            self.same(together(model, handle, optimizer)[0], expected[0])
            handle.close()

    def test_micro_batches_with_reentrant_checkpoints(self):
        from torch.utils.checkpoint import checkpoint  # pylint: disable=C0415

        def loss(model, step, rank):
            x = model[0](batch_of(step, rank)[:, :-1])
            for layer in model[1:3]:
                x = checkpoint(layer, x, use_reentrant=True)
            return model[3](x).square().mean()

        plain = decoder()
        for step in range(2):
            for rank in range(ranks.size()):
                (loss(plain, step, rank) / ranks.size()).backward()
        for exchange in ("shared_memory", "messages"):
            model = decoder()
            handle = self.sherd.fully_shard(model, exchange=exchange)
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
            for step in range(2):
                loss(model, step, ranks.rank()).backward()
            with handle.summon_full_parameters(read_only=True, with_gradients=True) as full:
                for name, parameter in plain.named_parameters():
                    self.assertTrue(torch.allclose(
                        full.gradient(name), parameter.grad, atol=1e-5), name)
            optimizer.step()
            handle.close()

    def test_no_sync_accumulates(self):
        plain = decoder()
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(2):
            for rank in range(ranks.size()):
                (loss_of(plain, batch_of(step, rank)) / ranks.size()).backward()
        optimizer.step()
        model = decoder()
        handle = self.sherd.fully_shard(model)
        optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
        with handle.no_sync():
            loss_of(model, batch_of(0, ranks.rank())).backward()
        loss_of(model, batch_of(1, ranks.rank())).backward()
        optimizer.step()
        with handle.summon_full_parameters(read_only=True):
            for ours, theirs in zip(model.parameters(), plain.parameters()):
                self.assertTrue(torch.allclose(ours, theirs, atol=1e-5))
        handle.close()

    def gradients_of(self, is_first, zeroed):
        """Of a backward after one under no_sync(), if that is first, and zero_grad() of
        an optimizer of these parameters."""
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        handle = self.sherd.fully_shard(model, units=[])
        optimizer = torch.optim.SGD(
            [part for name, part in handle.named_parameters() if zeroed(name)], lr=0.1)
        if is_first:
            with handle.no_sync():
                model(torch.ones(1, 3)).sum().backward()
        optimizer.zero_grad()
        model(torch.full((2, 3), 3.0)).square().sum().backward()
        with handle.summon_full_parameters(read_only=True, with_gradients=True) as full:
            gradients = {name: full.gradient(name).clone()
                         for name, _ in model.named_parameters()}
        handle.close()
        return gradients

    def test_zero_grad_drops_what_no_sync_has_kept_of_its_parameters(self):
        # One that another rank owns, all, some.
        for zeroed in (lambda name: name == "1.bias", lambda name: name == "0.weight",
                       lambda name: True, lambda name: name.endswith("bias")):
            fresh = self.gradients_of(False, zeroed)
            found = self.gradients_of(True, zeroed)
            for name, gradient in fresh.items():
                self.assertEqual(torch.equal(found[name], gradient), zeroed(name), name)

    def test_an_optimizer_of_parameters_of_which_a_rank_owns_nothing(self):
        for exchange in ("shared_memory", "messages"):
            for chosen in ("0.weight", "1.bias"):
                torch.manual_seed(0)
                plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).double()
                model = copy.deepcopy(plain)
                handle = self.sherd.fully_shard(model, units=[], exchange=exchange)
                slices = dict(handle.named_parameters())
                names = [name for name, _ in plain.named_parameters()]
                self.assertEqual(list(slices), names)
                self.assertEqual({(part.dtype, part.requires_grad)
                                  for part in slices.values()}, {(torch.float64, True)})
                optimizers = [torch.optim.SGD([slices[chosen]], lr=0.1),
                              torch.optim.SGD([plain.get_parameter(chosen)], lr=0.1)]
                for _ in range(2):
                    for net, optimizer in zip((model, plain), optimizers):
                        net(torch.ones(2, 3).double()).square().sum().backward()
                        optimizer.step()
                        optimizer.zero_grad()
                for name, value in handle.state_dict().items():
                    self.assertTrue(torch.allclose(value, plain.state_dict()[name]), name)
                with self.assertRaisesRegex(self.sherd.Error, "found 1 of 4"):
                    nn.utils.clip_grad_norm_([slices[chosen]], 1.0)
                handle.close()

    def test_optimizers_that_do_not_update_each_element_by_itself_are_refused(self):
        class Derived(torch.optim.Adafactor):
            pass

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        handle = self.sherd.fully_shard(model)
        before = handle.state_dict()
        for make in (torch.optim.LBFGS, torch.optim.Adafactor, Derived):
            optimizer = make(handle.parameters())

            def closure():
                optimizer.zero_grad()  # pylint: disable=cell-var-from-loop
                loss = model(torch.ones(2, 3)).square().sum()
                loss.backward()
                return loss
            if ranks.size() == 1:
                optimizer.step(closure)
                continue
            with self.assertRaisesRegex(
                    self.sherd.InvalidArgumentError,
                    "each element by itself, .* found (LBFGS|Adafactor), which"):
                optimizer.step(closure)
            for name, value in handle.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]), name)
        handle.close()

    def test_optimizers_that_are_sharded_or_want_sparse_gradients_are_refused(self):
        class ZeroRedundancyOptimizer(torch.optim.SGD):
            """PyTorch's needs a process group."""

        model = nn.EmbeddingBag(6, 2, mode="sum", sparse=True)
        handle = self.sherd.fully_shard(model)
        model(torch.tensor([[0, 1], [2, 2]])).sum().backward()
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, r"found SparseAdam: .* sherd.replicate\(\)"):
            torch.optim.SparseAdam(handle.parameters()).step()
        zero = ZeroRedundancyOptimizer(handle.parameters())
        if ranks.size() == 1:
            zero.step()
        else:
            with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "is sharded already"):
                zero.step()
        handle.close()

    def test_gradients_assigned_to_the_module_are_refused(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model = copy.deepcopy(plain)
        handle = self.sherd.fully_shard(model)
        for parameters, net in ((plain.parameters(), plain), (handle.parameters(), model)):
            optimizer = torch.optim.SGD(parameters, lr=0.1)
            whole = list(net.parameters())
            gradients = torch.autograd.grad(net(torch.ones(2, 3)).square().sum(), whole)
            if net is model:
                whole[0].grad = gradients[0]
                with self.assertRaisesRegex(
                        self.sherd.FailedPreconditionError, "has assigned .*autograd.backward"):
                    optimizer.step()
                whole[0].grad = None
            torch.autograd.backward(whole, gradients)
            optimizer.step()
        for name, value in handle.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name])
        handle.close()

    def test_the_norm_of_gradients_of_slices_is_that_of_all_ranks(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model = copy.deepcopy(plain)
        handle = self.sherd.fully_shard(model)
        for net in (plain, model):
            net(torch.ones(2, 3)).square().sum().backward()
        mine = [part.grad for part in handle.parameters() if part.grad is not None]
        with self.assertRaisesRegex(
                self.sherd.FailedPreconditionError, r"clip_grad_norm\(math.inf\)"):
            nn.utils.get_total_norm(mine)
        with self.assertRaisesRegex(
                self.sherd.FailedPreconditionError, "found clip_grads_with_norm_"):
            nn.utils.clip_grads_with_norm_(handle.parameters(), 1.0, torch.tensor(2.0))
        expected = nn.utils.get_total_norm([p.grad for p in plain.parameters()])
        for _ in range(2):
            self.assertAlmostEqual(
                handle.clip_grad_norm(math.inf), expected.item(), places=5)
        handle.close()

    def test_clipping_of_slices_that_have_a_gradient(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model = copy.deepcopy(plain)
        handle = self.sherd.fully_shard(model, units=[])
        for net in (plain, model):  # Without the last bias.
            nn.functional.linear(
                net[0](torch.ones(2, 3)), net[1].weight).square().sum().backward()
        slices = dict(handle.named_parameters())
        # All that the first ranks own, but not the last one.
        with self.assertRaisesRegex(self.sherd.Error, "found 2 of 4"):
            nn.utils.clip_grad_norm_([slices["0.weight"], slices["0.bias"]], 0.5)
        expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        found = nn.utils.clip_grad_norm_(
            [part for part in handle.parameters() if part.grad is not None], 0.5)
        self.assertAlmostEqual(found.item(), expected.item(), places=5)
        self.assertAlmostEqual(handle.clip_grad_norm(1.0), 0.5, places=5)
        handle.close()

    def test_the_norm_of_doubles_is_a_double(self):
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).double()
        model = copy.deepcopy(plain)
        handle = self.sherd.fully_shard(model)
        for net in (plain, model):
            net(torch.ones(2, 3, dtype=torch.float64)).square().sum().backward()
        expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        found = nn.utils.clip_grad_norm_(handle.parameters(), 0.5)
        torch.testing.assert_close(found, expected)
        handle.close()

    def test_parameters_without_elements_have_slices(self):
        model = nn.Linear(3, 2).double()
        model.none = nn.Parameter(torch.empty(0, 3, dtype=torch.float64))
        only = nn.Module()
        only.none = nn.Parameter(torch.empty(0), requires_grad=False)
        for module in (model, only):
            for parameter in module.parameters():
                nn.init.zeros_(parameter)
            handle = self.sherd.fully_shard(module)
            slices = dict(handle.named_parameters())
            self.assertEqual(
                list(slices), [name for name, _ in module.named_parameters()])
            for name, parameter in module.named_parameters():
                self.assertEqual(slices[name].dtype, parameter.dtype)
                self.assertEqual(slices[name].requires_grad, parameter.requires_grad)
            self.assertEqual(slices["none"].shape, (0,))
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
            if module is model:
                model(torch.ones(1, 3).double()).sum().backward()
                nn.utils.clip_grad_norm_(handle.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            handle.close()

    def test_a_loss_in_chunks(self):
        """Backwards of a part of the model run between a pass and its backward."""
        of_ways = []
        for in_chunks in (False, True):
            model = decoder()
            handle = self.sherd.fully_shard(model)
            tokens = batch_of(0, ranks.rank())
            hidden = model[2](model[1](model[0](tokens)))
            if in_chunks:
                cut = hidden.detach().requires_grad_()
                for rows in cut.chunk(2):
                    model[3](rows).square().sum().backward()
                hidden.backward(cut.grad)
            else:
                model[3](hidden).square().sum().backward()
            of_ways.append([part.grad.clone() for part in handle.parameters()
                            if part.numel() > 0])
            handle.close()
        for whole, chunked in zip(*of_ways):
            self.assertTrue(torch.allclose(whole, chunked, rtol=1e-4, atol=1e-3))

    def test_units_by_name_class_and_function(self):
        layer = nn.TransformerEncoderLayer
        options = self.sherd.UnitOptions(
            mixed_precision=self.sherd.MixedPrecision(param_dtype=torch.bfloat16))
        for units in ([], (), "1", ["1", "2"], layer, [layer, nn.Embedding],
                      lambda name, module: isinstance(module, layer),
                      lambda name, module: options if name == "2" else name == "1"):
            model = decoder()
            handle = self.sherd.fully_shard(model, units=units)
            self.assertEqual(handle.report().units, 1 if units in ([], ()) else len(handle.units()))
            loss_of(model, batch_of(0, 0)).backward()
            handle.close()

    def test_where_and_how_early_units_are_gathered_changes_no_loss(self):
        losses = []
        group = ranks.size() if ranks.size() > 1 else 0
        for options in ({}, {"prefetch_visits": 0}, {"secondary_ranks": group}):
            model = decoder()
            handle = self.sherd.fully_shard(model, exchange="messages", **options)
            optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
            losses.append(together(model, handle, optimizer)[0])
            handle.close()
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    def test_exchanges_have_the_words_of_the_environment(self):
        losses = set()
        for exchange in ("auto", "collective", "shm", "hierarchical", "messages",
                         "shared_memory"):
            model = decoder()
            handle = self.sherd.fully_shard(
                model, mesh=self.sherd.World.from_environment(), exchange=exchange)
            optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
            losses.add(str(together(model, handle, optimizer)[0]))
            by_message = exchange in ("collective", "messages") and ranks.size() > 1
            self.assertEqual(handle.report().gather_sent_bytes > 0, by_message, exchange)
            handle.close()
        self.assertEqual(len(losses), 1)
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "exchange: expected one of auto, coll"):
            self.sherd.fully_shard(decoder(), exchange="by hand")

    def test_reports_say_what_a_plan_and_a_limit_of_memory_have_led_to(self):
        model = decoder()
        handle = self.sherd.fully_shard(
            model, exchange="collective", memory_bytes=64 << 30)
        optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
        for step in range(6):
            loss_of(model, batch_of(step, 0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        report = handle.report()
        self.assertTrue(report.memory.decided)
        self.assertEqual(report.memory.limit_bytes, 64 << 30)
        self.assertGreaterEqual(len(report.memory.choices), 1)
        self.assertGreater(report.memory.choices[-1].peak_bytes, 0)
        if ranks.size() > 1:
            self.assertGreaterEqual(report.plan.steps, 5)
            self.assertGreater(report.reduces_under_way_peak, 0)
            self.assertGreater(report.gradient_slot_bytes_peak, 0)
        self.assertFalse(handle.units()[0].keep_whole)
        self.assertEqual((report.hook, report.hook_bytes), ("", 0))
        handle.close()

    def test_units_are_gathered_and_freed_by_hand(self):
        for exchange in ("shared_memory", "messages"):
            model = decoder()
            handle = self.sherd.fully_shard(
                model, exchange=exchange, strategy="shard_grad_op")
            before = handle.report().unshards
            self.assertTrue(handle.unshard(model[1]).wait())
            handle.reshard(model[1])
            self.assertTrue(handle.unshard("1").wait())
            if exchange == "messages" and ranks.size() > 1:
                self.assertEqual(handle.report().unshards, before + 2)
            with self.assertRaisesRegex(self.sherd.Error, "found another Linear"):
                handle.unshard(nn.Linear(1, 1))
            handle.close()

    def test_meta_parameters_get_their_values(self):
        plain = decoder()
        values = dict(plain.named_parameters(remove_duplicate=False))
        values.update(plain.named_buffers())
        with torch.device("meta"):
            model = decoder()
        with self.assertRaisesRegex(self.sherd.Error, "with memory, found meta"):
            self.sherd.fully_shard(model, device="meta")
        with self.assertRaisesRegex(self.sherd.Error, "device: expected .*found 3"):
            self.sherd.fully_shard(model, device=3)
        handle = self.sherd.fully_shard(
            model, device="cpu",
            init_fn=lambda name, tensor: tensor.copy_(values[name]))
        tokens = batch_of(0, 0)
        self.assertEqual(
            loss_of(model, tokens).item(), loss_of(plain, tokens).item())
        handle.close()

    def test_two_models_in_one_process(self):
        models = [decoder(), nn.Linear(3, 5)]
        handles = [self.sherd.fully_shard(model) for model in models]
        loss_of(models[0], batch_of(0, 0)).backward()
        models[1](torch.ones(2, 3)).sum().backward()
        for handle in handles:
            handle.close()

    def test_clipping_by_torch_is_clipping_of_all_ranks(self):
        norms = []
        for clip in (lambda m, h: nn.utils.clip_grad_norm_(h.parameters(), 0.5).item(),
                     lambda m, h: nn.utils.clip_grad_norm_(m.parameters(), 0.5).item(),
                     lambda m, h: h.clip_grad_norm(0.5)):
            model = decoder()
            handle = self.sherd.fully_shard(model)
            loss_of(model, batch_of(0, ranks.rank())).backward()
            norms.append(clip(model, handle))
            handle.close()
        self.same(norms, norms[2:] * 3)
        model = decoder()
        handle = self.sherd.fully_shard(model)
        loss_of(model, batch_of(0, ranks.rank())).backward()
        with torch.device("meta"):  # Where the program makes its own tensors.
            self.same([nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()], norms[:1])
        handle.close()
        norms = []
        for norm_type in (math.inf, "inf"):
            model = decoder()
            handle = self.sherd.fully_shard(model)
            loss_of(model, batch_of(0, ranks.rank())).backward()
            norms.append(
                nn.utils.clip_grad_norm_(model.parameters(), 1e-3, norm_type).item())
            self.assertAlmostEqual(handle.clip_grad_norm(1.0, norm_type), 1e-3, places=6)
            handle.close()
        self.assertEqual(norms[0], norms[1])
        model = decoder()
        model[1].requires_grad_(False)
        handle = self.sherd.fully_shard(model)
        loss_of(model, batch_of(0, ranks.rank())).backward()
        trained = [p for p in model.parameters() if p.requires_grad]
        self.assertGreater(nn.utils.clip_grad_norm_(trained, 0.5).item(), 0.5)
        with self.assertRaisesRegex(self.sherd.Error, "found 1 of"):
            nn.utils.clip_grad_norm_(trained[:1], 1.0)
        # Of a program that has imported it before sherd.
        with self.assertRaisesRegex(self.sherd.Error, "handle.clip_grad_norm"):
            nn.utils.clip_grad_norm_.sherd_original(handle.parameters(), 1.0)
        handle.close()

    def test_mistakes_are_told(self):
        sherd = self.sherd
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "strategy: expected one of"):
            sherd.fully_shard(decoder(), strategy="full")
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "takes none of 0, 1, 1.self_attn"):
            sherd.fully_shard(decoder(), units="h.*")
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "found a dict"):
            sherd.fully_shard({})
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "units: expected"):
            sherd.fully_shard(decoder(), units=3)
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "World, Mesh"):
            sherd.fully_shard(decoder(), "gloo")
        ddp = nn.Linear(2, 2)  # PyTorch's needs a process group to be constructed.
        ddp.__class__ = type("Ddp", (nn.parallel.DistributedDataParallel,), {})
        for wrap in (sherd.fully_shard, sherd.replicate):
            with self.assertRaisesRegex(
                    sherd.InvalidArgumentError, "found a DistributedDataParallel"):
                wrap(ddp)
            handle = wrap(nn.Linear(2, 2))
            with self.assertRaisesRegex(sherd.FailedPreconditionError, "with handle.join"):
                Join([handle])
            handle.close()
        model = decoder()
        handle = sherd.fully_shard(model)
        self.assertIs(sherd.handle_of(model), handle)
        with self.assertRaisesRegex(sherd.Error, "not sharded yet"):
            sherd.fully_shard(model)
        unshards = handle.report().unshards
        for copies in (copy.deepcopy, pickle.dumps):
            for part in (model, model[1], model[1].self_attn, model[3]):
                with self.assertRaisesRegex(sherd.Error, "before fully_shard"):
                    copies(part)
        self.assertEqual(handle.report().unshards, unshards)
        with self.assertRaisesRegex(sherd.Error, r"handle.parameters\(\)"):
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        handle.close()
        self.assertIsNone(sherd.handle_of(model))

    def test_another_torch_is_refused_by_name(self):
        from sherd import _build  # pylint: disable=import-outside-toplevel
        have, _build.torch.__version__ = _build.torch.__version__, "2.1.0"
        try:
            with self.assertRaisesRegex(ImportError, "found torch 2.1.0"):
                _build.check_torch()
        finally:
            _build.torch.__version__ = have


class Worlds(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def test_a_closed_world_of_the_environment_is_made_anew(self):
        world = self.sherd.World.from_environment()
        self.assertIs(self.sherd.World.from_environment(), world)
        world.close()
        again = self.sherd.World.from_environment()
        self.assertNotEqual(again, world)
        again.barrier()
        handle = self.sherd.fully_shard(nn.Linear(3, 5))
        self.assertEqual(handle.mesh.world, again)
        handle.close()

    def test_a_process_group_may_be_made_beside_the_world_of_the_environment(self):
        """Both look for their ranks at MASTER_ADDR and MASTER_PORT."""
        world = self.sherd.World.from_environment()
        torch.distributed.init_process_group("gloo")
        total = torch.ones(3)
        torch.distributed.all_reduce(total)
        self.assertEqual(total.tolist(), 3 * [ranks.size()])
        torch.distributed.destroy_process_group()
        model = decoder()
        handle = self.sherd.fully_shard(model, world)
        loss_of(model, batch_of(0, ranks.rank())).backward()
        handle.close()

    def test_a_process_group_must_be_there(self):
        with self.assertRaisesRegex(
                self.sherd.FailedPreconditionError, r"init_process_group\(\)"):
            self.sherd.World.from_process_group()


if __name__ == "__main__":
    ranks.main()
