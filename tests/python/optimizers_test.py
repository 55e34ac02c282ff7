# SPDX-License-Identifier: Apache-2.0
"""Options of optimizers, and their states in checkpoints that C++ programs have written."""

import itertools
import unittest
import unittest.mock

import checkpoint_test
import ranks
import torch
from checkpoint_test import adamw, half_frozen, train_by_several, with_bias_and_norm
from state_test import Elsewhere, changed
from torch import nn
from torch.distributed.checkpoint import state_dict as torch_state


class Counting(torch.optim.SGD):
    """Has numbers of Python in its state."""

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                state["decay"] = state.get("decay", 1.0) * 0.9
                state["flag"] = True
                state["sum"] = state.get("sum", torch.zeros(())) + 1
                parameter.sub_(parameter.grad * state["decay"])


class Optimizers(unittest.TestCase):
    setUp = checkpoint_test.Checkpoints.setUp
    folder = checkpoint_test.Checkpoints.folder
    close_to = checkpoint_test.Checkpoints.close_to
    muon_and_adamw = checkpoint_test.Checkpoints.muon_and_adamw

    def test_numbers_stay_numbers_of_the_same_type(self):
        sherd = self.sherd
        handle = sherd.fully_shard(with_bias_and_norm())
        optimizer = Counting(handle.parameters())
        train_by_several(handle.module, [optimizer], range(3))
        expected = {"step": 3, "decay": 0.9 ** 3, "flag": True, "sum": torch.tensor(3.0)}
        again, third = Counting(handle.parameters()), Counting(handle.parameters())
        with self.folder() as folder:
            sherd.save(folder, 3, handle, optimizer)
            sherd.load(folder, handle, again)
        sherd.load_optimizer_state_dict(
            handle, third, sherd.optimizer_state_dict(handle, again))
        for loaded in (again, third):
            for state in loaded.state.values():
                self.assertEqual({key: type(value) for key, value in state.items()},
                                 {key: type(value) for key, value in expected.items()})
                self.assertAlmostEqual(state.pop("decay"), expected["decay"], places=15)
                self.assertEqual(state["step"], 3)
            self.assertGreater(len(loaded.state), 0)
        handle.close()

    def test_values_of_sherd_are_refused(self):
        sherd = self.sherd
        handle = sherd.fully_shard(with_bias_and_norm())
        damaged = {"sherd.optimizer": "no JSON"}, {"sherd.optimizer": '[{"params": 3}]'}
        with self.folder() as folder:
            for number, values in enumerate(damaged):
                with self.assertRaisesRegex(
                        sherd.InvalidArgumentError, "begin with 'sherd.'"):
                    sherd.save(folder, number, handle, values=values)
                with unittest.mock.patch("sherd.checkpoints._check_values"):
                    sherd.save(folder, number, handle, values=values)
                with self.assertRaisesRegex(sherd.UnavailableError, "parameter groups"):
                    sherd.load(folder, handle, step=number)
        handle.close()

    def test_state_of_a_plain_optimizer_is_loaded_by_places(self):
        sherd = self.sherd

        def groups_of(named):
            named = list(named)
            matrices = [part for name, part in named if name in ("0.weight", "2.weight")]
            rest = [part for name, part in named if name not in ("0.weight", "2.weight")]
            return torch.optim.AdamW([{"params": matrices}, {"params": rest, "lr": 0.1}])

        plain = with_bias_and_norm()
        theirs = groups_of(plain.named_parameters())
        train_by_several(plain, [theirs], range(2))
        handle = sherd.fully_shard(with_bias_and_norm())
        handle.load_state_dict(plain.state_dict())
        ours = groups_of(handle.named_parameters())
        with self.assertRaisesRegex(
                sherd.InvalidArgumentError, "load_optimizer_state_dict.handle"):
            ours.load_state_dict(theirs.state_dict())
        with self.assertRaisesRegex(sherd.InvalidArgumentError, "get_optimizer_state_dict"):
            sherd.load_optimizer_state_dict(
                handle, torch.optim.AdamW(handle.parameters()), theirs.state_dict())
        sherd.load_optimizer_state_dict(handle, ours, theirs.state_dict())
        ours.load_state_dict(ours.state_dict())  # Of the same slices.
        for model, optimizer in ((plain, theirs), (handle.module, ours)):
            train_by_several(model, [optimizer], range(2, 4))
        for name, value in handle.state_dict().items():
            torch.testing.assert_close(value, plain.state_dict()[name], rtol=0, atol=1e-5)
        handle.close()

    def test_the_iterations_of_muon_have_options(self):
        options = {"coefficients": (3.0, -3.2, 1.2), "iterations": 4, "eps": 1e-6}
        theirs = {"ns_coefficients": (3.0, -3.2, 1.2), "ns_steps": 4, "eps": 1e-6}
        plain = with_bias_and_norm()
        matrices = [plain[0].weight, plain[2].weight]
        train_by_several(plain, [torch.optim.Muon(matrices, lr=0.02, **theirs)], range(2))
        found = []
        for dtype in (torch.bfloat16, torch.float32):
            handle = self.sherd.replicate(with_bias_and_norm())
            part, _ = self.sherd.split(handle, "[02].weight")
            muon = self.sherd.Muon(part, lr=0.02, iteration_dtype=dtype, **options)
            train_by_several(handle.module, [muon], range(2))
            found.append(handle.module[0].weight.detach().clone())
            handle.close()
        self.assertTrue(torch.allclose(found[0], plain[0].weight, atol=1e-5))
        self.assertFalse(torch.equal(found[0], found[1]))
        self.assertTrue(torch.allclose(found[0], found[1], atol=1e-2))
        handle = self.sherd.replicate(with_bias_and_norm())
        part, _ = self.sherd.split(handle, "[02].weight")
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "coefficients: exp"):
            self.sherd.Muon(part, coefficients=(1.0, 2.0))
        handle.close()

    def test_parameters_need_not_be_contiguous(self):
        def channels_last():
            torch.manual_seed(0)
            layers = torch.nn.Unflatten(1, (2, 2, 2)), torch.nn.Conv2d(2, 3, 2)
            return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)

        def train_on(handle, optimizer):
            train_by_several(handle.module, [optimizer], range(3))
            return handle.module[1].weight.detach().clone()

        sherd = self.sherd
        for theirs, ours in (
                (lambda of: torch.optim.SGD(of.parameters(), lr=0.1, momentum=0.9),
                 lambda of: sherd.SGD(of, lr=0.1, momentum=0.9)),
                (lambda of: torch.optim.AdamW(of.parameters(), lr=0.1),
                 lambda of: sherd.AdamW(of, lr=0.1)),
                (lambda of: torch.optim.AdamW(of.parameters(), lr=0.1),
                 lambda of: sherd.AdamW(of, lr=0.1, in_backward=True))):
            plain = channels_last()
            optimizer = theirs(plain)
            train_by_several(plain, [optimizer], range(3))
            train_by_several(plain, [optimizer], range(3))
            handle, again = (sherd.replicate(channels_last()) for _ in range(2))
            own = ours(handle)
            train_on(handle, own)
            with self.folder() as folder:
                sherd.save(folder, 3, handle, own)
                other = ours(again)
                sherd.load(folder, again, other)
            trained = train_on(handle, own)
            self.assertTrue(torch.equal(trained, train_on(again, other)))
            self.assertFalse(trained.is_contiguous())
            self.assertTrue(torch.allclose(trained, plain[1].weight, atol=1e-5))
            handle.close()
            again.close()

    def with_an_unused_layer(self, make):
        """A handle and an optimizer that has updated all but parameters of `unused`."""
        model = with_bias_and_norm()
        model.unused = torch.nn.Linear(2, 2)
        model.forward = lambda x: torch.nn.Sequential(*list(model)[:-1])(x)
        handle = self.sherd.replicate(model)
        self.addCleanup(handle.close)
        optimizer = make(model.parameters())
        train_by_several(model, [optimizer], range(2))
        return handle, optimizer

    def test_parts_of_state_have_what_is_there_before_the_first_update(self):
        for make, expected in (
                (torch.optim.NAdam, {"step": 0.0, "mu_product": 1.0}),
                (lambda p: torch.optim.ASGD(p, lr=0.5), {"eta": 0.5, "mu": 1.0})):
            handle, optimizer = self.with_an_unused_layer(make)
            state = self.sherd.optimizer_state_dict(handle, optimizer, "sharded")["state"]
            for key, value in expected.items():
                self.assertEqual(state["unused.bias"][key].item(), value, key)

    def test_parts_of_state_that_cannot_be_there_before_the_first_update(self):
        handle, optimizer = self.with_an_unused_layer(
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5))
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "SGD: .*found unused.weight not updated"):
            self.sherd.optimizer_state_dict(handle, optimizer, "sharded")

    def save_as_in_cpp(self, folder, handle, optimizers):
        """Sections have the names of the optimizers, as those of `sherd train`."""
        from sherd import _core, _tree  # pylint: disable=import-outside-toplevel
        state = _core.CheckpointState()
        state.add_parameters(handle.core_parameters)
        state.add_buffers(_tree.checkpoint_tree(handle.module))
        for section, optimizer in optimizers.items():
            state.add_optimizer(section, optimizer, handle.core_parameters)
        _core.CheckpointSaver(
            self.world, folder, False, 0, 0, False, 1 << 30).save(1, state)

    def test_the_only_optimizer_of_a_cpp_checkpoint_is_loaded(self):
        sherd = self.sherd
        handle = sherd.fully_shard(with_bias_and_norm())
        optimizer = sherd.AdamW(handle, lr=1e-2)
        train_by_several(handle.module, [optimizer], range(2))
        saved = sherd.optimizer_state_dict(handle, optimizer)["state"]
        for make in (lambda h: sherd.AdamW(h, lr=1e-2), adamw):
            with self.folder() as folder:
                self.save_as_in_cpp(folder, handle, {"adamw": optimizer})
                again = sherd.fully_shard(changed(with_bias_and_norm()))
                ours = make(again)
                sherd.load(folder, again, ours)
                self.close_to(sherd.optimizer_state_dict(again, ours)["state"], saved, 0)
                with self.assertRaisesRegex(sherd.Error, "that of another optimizer"):
                    sherd.load(folder, again, sherd.SGD(again, momentum=0.9))
                again.close()
        handle.close()

    def test_averages_of_weights_continue_from_a_checkpoint(self):
        """On the engine that saved them and on the other one."""
        sherd, values = self.sherd, torch.ones(5, 8)

        def begin(make):
            model = with_bias_and_norm()
            handle = make(model)
            optimizer = sherd.AdamW(handle, lr=1e-2)
            return model, handle, optimizer, sherd.WeightAverage(handle, decay=0.5)

        def train_on(model, _handle, optimizer, average, steps):
            for step in steps:
                train_by_several(model, [optimizer], [step])
                average.update()

        @torch.no_grad()
        def outputs(model, _handle, _optimizer, average):
            weights = model(values)
            average.swap()
            averages = model(values)
            average.swap()
            return weights, averages

        with self.folder() as folder:
            first = begin(sherd.fully_shard)
            train_on(*first, range(2))
            sherd.save(folder, 2, first[1], first[2], average=first[3])
            train_on(*first, range(2, 4))
            for make in (sherd.fully_shard, sherd.replicate):
                then = begin(make)
                sherd.load(folder, then[1], then[2], average=then[3])
                train_on(*then, range(2, 4))
                for ours, expected in zip(outputs(*then), outputs(*first)):
                    torch.testing.assert_close(ours, expected, rtol=0, atol=0)
                then[1].close()
            # One without averages.
            sherd.save(folder, 4, first[1], first[2])
            train_on(*first, range(4, 5))
            with self.assertRaisesRegex(sherd.Error, "expected averages of the weights"):
                sherd.load(folder, first[1], first[2], average=first[3])
            report = sherd.load(folder, first[1], first[2], average=first[3], strict=False)
            self.assertTrue(all(name.startswith("ema ") for name in report.missing))
            weights, averages = outputs(*first)
            self.assertTrue(torch.equal(weights, averages))
            first[3].swap()
            with self.assertRaisesRegex(sherd.Error, "second swap"):
                sherd.save(folder, 5, first[1], first[2], average=first[3])
            first[3].swap()
            first[1].close()

    def test_state_of_what_was_frozen_later_is_loaded_where_it_is_frozen_from_the_start(self):
        sherd = self.sherd
        kinds = {sherd.replicate: lambda h: torch.optim.AdamW(h.module.parameters()),
                 sherd.fully_shard: adamw}

        def step(handle, optimizer):
            handle.module(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        for save, load in itertools.product(kinds, repeat=2):
            with self.folder() as folder, self.subTest(save=save, load=load):
                model = half_frozen().requires_grad_(True)
                source, target = save(model), load(half_frozen())
                trained, fresh = kinds[save](source), kinds[load](target)
                step(source, trained)
                model[0].requires_grad_(False)
                step(source, trained)
                sherd.save(folder, 2, source, trained)
                expected = sherd.optimizer_state_dict(source, trained)
                self.assertIn("0.weight", expected["state"])
                if load is sherd.replicate:  # It does not manage what is frozen.
                    del expected["state"]["0.weight"], expected["state"]["0.bias"]
                for load_into in (
                        lambda: sherd.load(folder, target, fresh),
                        lambda: sherd.load_optimizer_state_dict(
                            target, fresh, sherd.optimizer_state_dict(source, trained))):
                    load_into()
                    self.close_to(sherd.optimizer_state_dict(target, fresh)["state"],
                                  expected["state"], 0)
                step(target, fresh)
                target.close()
                source.close()

    def test_optimizers_of_sherd_make_no_state_of_frozen_parameters(self):
        sherd = self.sherd
        for make in (sherd.AdamW, lambda handle: sherd.SGD(handle, momentum=0.9)):
            source, target = (sherd.fully_shard(half_frozen()) for _ in range(2))
            trained, fresh, third = make(source), make(target), make(target)
            source.module(torch.ones(2, 3)).sum().backward()
            trained.step()
            expected = sherd.optimizer_state_dict(source, trained)
            self.assertEqual(set(expected["state"]), {"1.weight", "1.bias"})
            with self.folder() as folder:
                sherd.save(folder, 1, source, trained)
                sherd.load(folder, target, fresh)
            parts = sherd.optimizer_state_dict(source, trained, "sharded")
            self.assertLessEqual(set(parts["state"]), {"1.weight", "1.bias"})
            sherd.load_optimizer_state_dict(target, third, parts)
            for loaded in (fresh, third):
                found = sherd.optimizer_state_dict(target, loaded)["state"]
                self.close_to(found, expected["state"], 0)
            source.close()
            target.close()

    def test_parts_of_state_have_what_was_frozen_later(self):
        sherd = self.sherd
        model = half_frozen().requires_grad_(True)
        source, target = sherd.fully_shard(model), sherd.fully_shard(half_frozen())
        trained, again, fresh = (
            sherd.AdamW(source), sherd.AdamW(source), sherd.AdamW(target))
        model(torch.ones(2, 3)).sum().backward()
        trained.step()
        model[0].requires_grad_(False)
        expected = sherd.optimizer_state_dict(source, trained)["state"]
        self.assertIn("0.weight", expected)
        sherd.load_optimizer_state_dict(
            source, again, sherd.optimizer_state_dict(source, trained, "sharded"))
        sherd.load_optimizer_state_dict(
            target, fresh, sherd.optimizer_state_dict(source, trained))
        for handle, loaded in ((source, again), (target, fresh)):
            self.close_to(sherd.optimizer_state_dict(handle, loaded)["state"], expected, 0)
        source.close()
        target.close()

    def test_state_of_a_plain_run_with_parameters_without_elements_is_loaded(self):
        sherd = self.sherd

        def make():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            model[0].none = nn.Parameter(torch.empty(0, 3))
            model[0].weight.requires_grad_(False)
            return model

        def of_plain(chosen):
            plain = make()
            optimizer = torch.optim.AdamW(
                one for name, one in plain.named_parameters() if chosen(name))
            plain(torch.ones(2, 4)).sum().backward()
            plain[0].none.grad = torch.empty(0, 3)
            optimizer.step()
            return optimizer.state_dict(), torch_state.get_optimizer_state_dict(plain, optimizer)

        for shard, chosen in itertools.product(
                (sherd.fully_shard, sherd.replicate),
                (lambda _: True, lambda name: name != "0.weight")):
            for state in of_plain(chosen):
                handle = shard(make())
                named = (handle if shard is sherd.fully_shard else handle.module
                         ).named_parameters()
                ours = torch.optim.AdamW(one for name, one in named if chosen(name))
                sherd.load_optimizer_state_dict(handle, ours, state)
                expected = of_plain(chosen)[1]["state"]
                self.assertEqual(expected.pop("0.none")["exp_avg"].numel(), 0)
                self.close_to(sherd.optimizer_state_dict(handle, ours)["state"], expected, 0)
                handle.close()

    def test_state_that_is_none_is_none(self):
        sherd = self.sherd
        handle = sherd.fully_shard(nn.Linear(4, 4))
        of_plain = torch.optim.SGD(nn.Linear(4, 4).parameters(), momentum=0.9).state_dict()
        for momentum, buffers in (
                (0.0, (None, None)), (0.9, (torch.ones(4, 4), None))):
            state = of_plain | {"state": {
                place: {"momentum_buffer": buffer} for place, buffer in enumerate(buffers)}}
            optimizer = torch.optim.SGD(handle.parameters(), momentum=momentum)
            sherd.load_optimizer_state_dict(handle, optimizer, state)
            self.assertEqual(
                list(sherd.optimizer_state_dict(handle, optimizer)["state"]),
                ["weight"] if momentum else [])
        handle.close()

    def test_state_without_values_is_refused(self):
        sherd = self.sherd
        handle = sherd.fully_shard(nn.Linear(4, 4))
        optimizer = torch.optim.SGD(handle.parameters(), momentum=0.9)
        state = sherd.optimizer_state_dict(handle, optimizer)
        state["state"] = {"weight": {"momentum_buffer": Elsewhere(4, 4)}}
        with self.assertRaisesRegex(sherd.InvalidArgumentError, r"call full_tensor\(\)"):
            sherd.load_optimizer_state_dict(handle, optimizer, state)
        handle.close()

    def test_several_optimizers_of_a_cpp_checkpoint_are_loaded_by_name(self):
        sherd = self.sherd
        with self.folder() as folder:
            handle = sherd.fully_shard(with_bias_and_norm(), share_gradients=True)
            optimizers = self.muon_and_adamw(handle)
            train_by_several(handle.module, optimizers.values(), range(2))
            saved = sherd.optimizer_state_dict(handle, optimizers)["state"]
            self.save_as_in_cpp(folder, handle, optimizers)
            again = sherd.fully_shard(
                changed(with_bias_and_norm()), share_gradients=True)
            ours = self.muon_and_adamw(again)
            sherd.load(folder, again, ours)
            self.close_to(sherd.optimizer_state_dict(again, ours)["state"], saved, 0)
            with self.assertRaisesRegex(
                    sherd.InvalidArgumentError,
                    "found the states adamw, muon, and 'optimizer' to load"):
                sherd.load(folder, again, sherd.AdamW(again))
            again.close()
            handle.close()


if __name__ == "__main__":
    ranks.main()
