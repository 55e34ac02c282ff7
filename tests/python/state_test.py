# SPDX-License-Identifier: Apache-2.0
"""The state of sharded modules: whole, in parts, in checkpoints."""

import contextlib
import tempfile
import unittest
import unittest.mock

import ranks
import torch
from fully_shard_test import batch_of, decoder, loss_of
from torch import nn


class WithEverything(nn.Module):
    """Tied weights, buffers that are saved and one that is not, extra state, a
    frozen parameter, one without dimensions and one that is ignored."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 5))
        self.tied = nn.Linear(5, 7)
        self.tied.weight = self.layers[0].weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.rand(3, 2, 5), requires_grad=False)
        self.alone = nn.Parameter(torch.rand(3))
        self.register_buffer("table", torch.arange(6).view(2, 3).t())
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.note = "one"

    def get_extra_state(self):
        return {"note": self.note}

    def set_extra_state(self, state):
        self.note = state["note"]

    def forward(self, x):
        return self.layers(x) * self.scale + self.alone.sum() + self.frozen.sum()


class Scaled(nn.Linear):
    """Its extra state is a tensor, whose length depends on the value."""
    scale = "1"

    def get_extra_state(self):
        return torch.tensor(list(self.scale.encode()), dtype=torch.uint8)

    def set_extra_state(self, state):
        self.scale = bytes(state.tolist()).decode()


class Elsewhere(torch.Tensor):
    """As a DTensor, it has no values of its own."""

    @staticmethod
    def __new__(cls, *shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} of a tensor without values")


def changed(module):
    """The same with other values everywhere."""
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.add_(1)
    if hasattr(module, "note"):
        module.note = "two"
    return module


class State(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def equal(self, found, expected):
        self.assertEqual(list(found), list(expected))
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                self.assertEqual(found[name].dtype, value.dtype, name)
                self.assertTrue(torch.equal(found[name], value), name)
            else:
                self.assertEqual(found[name], value, name)

    def sharded(self, module, **options):
        return self.sherd.fully_shard(module, **options)

    def test_an_optimizer_of_a_parameter_without_dimensions(self):
        states = []
        for kind in ("full", "sharded"):
            model = WithEverything()
            handle = self.sherd.fully_shard(model, ignored=["alone"])
            optimizer = torch.optim.AdamW(handle.parameters(), lr=0.1)
            for step in range(3):
                model(torch.ones(4, 5) * (1 + ranks.rank())).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 1:
                    state = self.sherd.optimizer_state_dict(handle, optimizer, kind)
                    self.sherd.load_optimizer_state_dict(handle, optimizer, state)
            states.append(handle.state_dict())
            handle.close()
        for name, value in states[0].items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(value, states[1][name]), name)

    def test_state_is_loaded_after_an_evaluation(self):
        model = decoder()
        handle = self.sherd.fully_shard(model)
        optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
        loss_of(model, batch_of(0, ranks.rank())).backward()
        optimizer.step()
        with torch.no_grad():
            before = loss_of(model, batch_of(1, 0)).item()
        handle.load_state_dict(changed(decoder()).state_dict())
        with torch.no_grad():
            self.assertNotEqual(loss_of(model, batch_of(1, 0)).item(), before)
        handle.close()

    def test_whole_states_are_those_of_the_plain_module(self):
        for strategy in ("full_shard", "no_shard"):
            plain = WithEverything()
            handle = self.sharded(
                WithEverything(), strategy=strategy, ignored=["alone"])
            full = handle.state_dict()
            self.equal(full, plain.state_dict())
            self.assertEqual(full._metadata, plain.state_dict()._metadata)
            changed(plain).load_state_dict(full)
            self.equal(plain.state_dict(), full)
            on_rank0 = handle.state_dict("rank0")
            self.assertEqual(bool(on_rank0), ranks.rank() == 0)
            if on_rank0:
                self.equal(on_rank0, full)
            handle.close()

    def test_loads_what_a_plain_module_has(self):
        expected = changed(WithEverything()).state_dict()
        for state in (expected, expected if ranks.rank() == 0 else {}):
            model = WithEverything()
            handle = self.sharded(model, ignored=["alone"])
            keys = handle.load_state_dict(state)
            self.assertEqual([*keys.missing_keys, *keys.unexpected_keys], [])
            self.equal(handle.state_dict(), expected)
            with handle.summon_full_parameters(read_only=True) as whole:
                self.assertTrue(torch.equal(
                    whole.tensor("frozen"), expected["frozen"]))
            self.assertEqual(model.note, "two")
            handle.close()

    def test_parts_are_loaded_into_the_same_layout(self):
        expected = changed(WithEverything()).state_dict()
        source = self.sharded(changed(WithEverything()))
        target = self.sharded(WithEverything())
        parts = source.state_dict("sharded")
        self.assertEqual(
            {name: tuple(part.shape) for name, part in parts.items()
             if isinstance(part, torch.Tensor)},
            {name: tuple(tensor.shape) for name, tensor in expected.items()
             if isinstance(tensor, torch.Tensor)})
        target.load_state_dict(parts)
        self.equal(target.state_dict(), expected)
        source.close()
        target.close()

    def test_a_wrong_part_of_one_rank_is_loaded_on_none(self):
        source = self.sharded(changed(WithEverything()))
        target = self.sharded(WithEverything())
        before = target.state_dict()
        parts = source.state_dict("sharded")
        weight = parts["layers.2.weight"]
        shifted = type(weight)(weight.shape, torch.ones(36), 0)
        for wrong, text in (
                ({"note": torch.ones(3)}, "note, which the module lacks"),
                ({"layers.2.weight": shifted}, "layers.2.weight: expected elements"),
                ({"table": torch.ones(3, 2)}, "table: expected a rank's part"),
                ({"scale": torch.ones(())}, "scale: expected a rank's part")):
            is_wrong = ranks.rank() == ranks.size() - 1
            with self.assertRaisesRegex(self.sherd.InvalidArgumentError, text):
                target.load_state_dict(parts | wrong if is_wrong else parts)
            self.equal(target.state_dict(), before)
        source.close()
        target.close()

    def test_extra_state_may_be_a_tensor(self):
        source, target = self.sharded(Scaled(3, 3)), self.sharded(Scaled(3, 3))
        for kind in ("full", "rank0", "sharded"):
            source.module.scale += "23"
            target.load_state_dict(source.state_dict(kind))
            self.assertEqual(target.module.scale, source.module.scale, kind)
        with self.folder(source) as folder:
            self.sherd.save(folder, 1, source)
            target.module.scale = "another"
            self.sherd.load(folder, target)
            self.assertEqual(target.module.scale, source.module.scale)
        source.close()
        target.close()

    def test_extra_state_is_part_of_a_checkpoint(self):
        sherd = self.sherd
        noted, plain = self.sharded(Scaled(3, 3)), self.sharded(nn.Linear(3, 3))
        with self.folder(noted) as folder:
            sherd.save(folder, 1, plain)  # As earlier ones, it has none.
            noted.module.scale = "before"
            sherd.load(folder, noted)
            self.assertEqual(noted.module.scale, "before")
            sherd.save(folder, 2, noted, values={"mine": "text"})
            with self.assertRaisesRegex(sherd.Error, "lacks, found _extra_state"):
                sherd.load(folder, plain)
            report = sherd.load(folder, plain, strict=False)
            self.assertEqual(report.unexpected, ["model _extra_state"])
            self.assertEqual(report.values, {"mine": "text"})
            more = nn.Linear(3, 3)
            more.part = Scaled(1, 1)
            target = self.sharded(more)
            report = sherd.load(folder, target, strict=False)
            self.assertIn("model part._extra_state", report.missing)
            target.close()
            with unittest.mock.patch.object(
                    Scaled, "get_extra_state", lambda self: contextlib.nullcontext()):
                with self.assertRaisesRegex(sherd.Error, "_extra_state: expected .*nullcontext"):
                    sherd.save(folder, 3, noted)
            with unittest.mock.patch("sherd.checkpoints._check_values"):
                sherd.save(folder, 4, plain, values={"sherd.extra_state": '{"_extra_state": "AA"}'})
            with self.assertRaisesRegex(sherd.Error, "as value 'sherd.extra_state'"):
                sherd.load(folder, noted)
        noted.close()
        plain.close()

    def test_generators_that_were_not_saved_are_told(self):
        handle = self.sharded(nn.Linear(3, 3))
        kept, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)
        before = other.get_state()
        with self.folder(handle) as folder:
            self.sherd.save(folder, 1, handle, generators={"kept": kept})
            for generators in ({"other": other}, {"kept": kept, "other": other}):
                with self.assertRaisesRegex(self.sherd.Error, "found none of other;"):
                    self.sherd.load(folder, handle, generators=generators)
                report = self.sherd.load(folder, handle, generators=generators, strict=False)
                self.assertEqual(report.missing, ["generators other"])
            self.sherd.load(folder, handle, generators={"kept": kept})
        self.assertTrue(torch.equal(other.get_state(), before))
        handle.close()

    def test_half_precision_is_used_and_full_precision_saved(self):
        plain = decoder()
        handle = self.sharded(decoder(), mixed_precision=self.sherd.MixedPrecision(
            param_dtype=torch.bfloat16))
        self.equal(handle.state_dict(), plain.state_dict())
        halves = {name: tensor.to(torch.bfloat16)
                  for name, tensor in plain.state_dict().items()}
        handle.load_state_dict(halves)
        self.equal(handle.state_dict(), {name: tensor.float()
                                         for name, tensor in halves.items()})
        handle.close()

    def test_training_goes_on_with_what_was_loaded(self):
        plain = decoder()
        losses = []
        handle = self.sharded(changed(decoder()))
        handle.load_state_dict(plain.state_dict())
        for model in (plain, handle.module):
            losses.append(loss_of(model, batch_of(0, 0)).item())
        self.assertAlmostEqual(losses[0], losses[1], places=5)
        handle.close()

    def test_a_module_does_not_save_its_parts_by_mistake(self):
        model = decoder()
        handle = self.sharded(model)
        for part in (model, model[1], model[1].self_attn):
            with self.assertRaisesRegex(self.sherd.Error, r"handle.state_dict\(\)"):
                part.state_dict()
            with self.assertRaisesRegex(self.sherd.Error, r"handle.load_state_dict"):
                part.load_state_dict({})
        if ranks.rank() == 0:
            with handle.state_dict_names():
                self.assertEqual(list(model[1].state_dict()), list(decoder()[1].state_dict()))
        with handle.state_dict_names():
            self.equal(handle.state_dict(), decoder().state_dict())
            self.assertEqual(list(model.state_dict()), list(decoder().state_dict()))
        with self.assertRaisesRegex(self.sherd.Error, r"handle.state_dict_names\(\)"):
            model.state_dict()
        handle.close()

    def test_mistakes_are_told_on_every_rank(self):
        sherd = self.sherd
        handle = self.sharded(WithEverything())
        before = handle.state_dict()
        good = changed(WithEverything()).state_dict()
        for wrong, text in (
                ({"scale": None}, "scale: a NoneType instead"),
                ({"frozen": Elsewhere(3, 2, 5)}, r"plain tensor; call full_tensor\(\)"),
                ({"frozen": torch.ones(3)}, r"frozen of shape \(3,\) instead of \(3, 2, 5\)"),
                ({"table": torch.ones(3)}, r"table of shape \(3,\)"),
                ({"other": torch.ones(3)}, "other, which the module lacks")):
            state = good | wrong if ranks.rank() == 0 else {}
            with self.assertRaisesRegex(sherd.InvalidArgumentError, text):
                handle.load_state_dict(state)
        optimizer = sherd.SGD(handle)
        good_of_optimizer = sherd.optimizer_state_dict(handle, optimizer)
        first = ranks.rank() == 0
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "found a NoneType"):
            handle.load_state_dict(None if first else good)
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "found a NoneType"):
            sherd.load_optimizer_state_dict(
                handle, optimizer, None if first else good_of_optimizer)
        missing = {name: tensor for name, tensor in good.items() if name != "frozen"}
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "no frozen"):
            handle.load_state_dict(missing)
        self.equal(handle.state_dict(), before)
        keys = handle.load_state_dict(missing | {"other": 1}, strict=False)
        self.assertEqual(keys.missing_keys, ["frozen"])
        self.assertEqual(keys.unexpected_keys, ["other"])
        self.equal(handle.state_dict(), good | {"frozen": before["frozen"]})
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "full, rank0, sharded"):
            handle.state_dict("whole")
        with self.assertRaisesRegex(sherd.Error, "a rank's part"):
            _ = handle.state_dict("sharded")["frozen"] + 1
        if ranks.size() > 1:
            mixed = handle.state_dict("sharded") if ranks.rank() else good
            with self.assertRaisesRegex(sherd.Error, "the same kind of state"):
                handle.load_state_dict(mixed)
        handle.close()

    def refuses_to_save_and_load(self, handle, text):
        """`handle` is that of a decoder; `text` is what the errors say."""
        refused = self.assertRaisesRegex(self.sherd.FailedPreconditionError, text)
        if hasattr(handle, "state_dict"):
            for kind in ("full", "rank0", "sharded"):
                with refused:
                    handle.state_dict(kind)
            with refused:
                handle.load_state_dict(decoder().state_dict())
        with self.folder(handle) as folder, refused:
            self.sherd.save(folder, 1, handle)

    @contextlib.contextmanager
    def folder(self, handle):
        """Rank 0's, for all ranks."""
        from sherd import _together  # pylint: disable=import-outside-toplevel
        with tempfile.TemporaryDirectory() as mine:
            yield _together.gathered(handle.mesh.world, mine)[0]
            handle.mesh.world.barrier()

    def test_a_parameter_that_was_replaced_is_not_saved(self):
        def module(model):
            model[1].linear1 = nn.Linear(32, 64)

        def parameter(model):
            model[1].linear1.weight = nn.Parameter(torch.ones(64, 32))

        def tied(model):
            model[1].linear1.weight = model[2].linear1.weight

        def memory(model):
            model[1].linear1.weight.data = torch.ones(64, 32)

        for replace in (module, parameter, tied, memory):
            model = decoder()
            handle = self.sharded(model)
            handle.state_dict()
            replace(model)
            self.refuses_to_save_and_load(
                handle, "1.linear1.weight.*before fully_shard")
            handle.close()
        for replace in (module, parameter, tied):
            model = decoder()
            handle = self.sherd.replicate(model)
            replace(model)
            self.refuses_to_save_and_load(handle, "1.linear1.weight.*replicate")
            handle.close()

    def test_a_parameter_that_was_removed_or_renamed_is_not_saved(self):
        def remove(model):
            del model[1].linear1

        def rename(model):  # As peft wraps layers.
            model[1].linear1 = nn.Sequential(model[1].linear1)

        for change in (remove, rename):
            model = decoder()
            handle = self.sharded(model)
            change(model)
            self.refuses_to_save_and_load(handle, "1.linear1.weight.*found none")
            handle.close()
        model = decoder()
        handle = self.sherd.replicate(model)
        remove(model)
        self.refuses_to_save_and_load(handle, "1.linear1.weight.*found none")
        handle.close()

    def test_a_renamed_parameter_of_a_replicated_module_is_saved(self):
        model = decoder()
        handle = self.sherd.replicate(model)
        model[1].linear1 = nn.Sequential(model[1].linear1)
        expected = model[1].linear1[0].weight.detach().clone()
        with self.folder(handle) as folder:
            self.sherd.save(folder, 1, handle)
            changed(model)
            self.sherd.load(folder, handle)
        self.assertTrue(torch.equal(model[1].linear1[0].weight, expected))
        handle.close()

    def test_what_is_new_in_a_module_is_saved(self):
        model = decoder()
        handle = self.sharded(model)
        model.more = nn.Linear(2, 2)
        model.same = model[1].linear1
        state = handle.state_dict()
        self.assertIn("more.weight", state)
        self.assertTrue(torch.equal(state["same.weight"], state["1.linear1.weight"]))
        handle.close()

    def test_views_that_hooks_make_are_refused(self):
        def view(_module, state, prefix, _metadata):
            state[prefix + "weight"] = state[prefix + "weight"].detach()
        model = decoder()
        model[1].linear1._register_state_dict_hook(view)
        handle = self.sharded(model)
        with self.assertRaisesRegex(self.sherd.Error, "1.linear1.weight: expected a par"):
            handle.state_dict()
        handle.close()


if __name__ == "__main__":
    ranks.main()
