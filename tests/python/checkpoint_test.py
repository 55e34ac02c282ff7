# SPDX-License-Identifier: Apache-2.0
"""Optimizers' states, and checkpoints that C++ programs and PyTorch read, too."""

import collections
import contextlib
import copy
import gc
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref

import ranks
import torch
from fully_shard_test import batch_of, decoder, loss_of
from state_test import WithEverything, changed
from torch import nn
from torch.distributed.checkpoint import state_dict as torch_state

SHERD = sys.argv[2] if len(sys.argv) > 2 else "sherd"


def adamw(handle):
    return torch.optim.AdamW(handle.parameters(), lr=1e-2)


def train(model, optimizer, steps):
    """Every rank takes the same batches, so that one process has the same numbers."""
    losses = []
    for step in steps:
        loss = loss_of(model, batch_of(step, 0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def half_frozen():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    return model


def with_bias_and_norm():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.LayerNorm(16),
                         nn.Linear(16, 4))


def train_by_several(model, optimizers, steps):
    """Every rank takes the same batches."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        model(torch.randn(5, 8, generator=generator)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()


class Checkpoints(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd
        torch.manual_seed(0)  # Ranks make the same modules.
        self.world = sherd.World.from_environment()

    @contextlib.contextmanager
    def folder(self):
        """One for all ranks."""
        from sherd import _together  # pylint: disable=import-outside-toplevel
        mine = tempfile.mkdtemp() if ranks.rank() == 0 else None
        folder = _together.gathered(self.world, mine)[0]
        try:
            yield folder
            self.world.barrier()  # Not after an error: others may wait elsewhere.
        finally:
            if mine:
                shutil.rmtree(mine, ignore_errors=True)

    def close_to(self, found, expected, tolerance=1e-5):
        self.assertEqual(set(found), set(expected))
        for name, value in expected.items():
            for key, tensor in value.items():
                self.assertEqual(found[name][key].shape, tensor.shape, (name, key))
                self.assertTrue(torch.allclose(
                    found[name][key], tensor, atol=tolerance), (name, key))

    def makers(self):
        sherd = self.sherd
        return {
            "AdamW of torch": adamw,
            "SGD of torch": lambda h: torch.optim.SGD(
                h.parameters(), lr=1e-2, momentum=0.9),
            "NAdam of torch": lambda h: torch.optim.NAdam(h.parameters(), lr=1e-3),
            "AdamW": lambda h: sherd.AdamW(h, lr=1e-2),
            "SGD": lambda h: sherd.SGD(h, lr=1e-2, momentum=0.9)}

    def test_state_of_optimizers_is_that_of_a_plain_module(self):
        for plain_make, make in (
                (lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4),
                 lambda h: torch.optim.AdamW(h.parameters(), lr=1e-2, eps=1e-4)),
                (lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4),
                 lambda h: self.sherd.AdamW(h, lr=1e-2, eps=1e-4))):
            plain = decoder()
            plain_optimizer = plain_make(plain.parameters())
            train(plain, plain_optimizer, range(2))
            expected = torch_state.get_optimizer_state_dict(plain, plain_optimizer)
            model = decoder()
            handle = self.sherd.fully_shard(model)
            optimizer = make(handle)
            train(model, optimizer, range(2))
            found = self.sherd.optimizer_state_dict(handle, optimizer)
            self.close_to(found["state"], expected["state"])
            self.assertEqual(
                found["param_groups"][0]["params"],
                expected["param_groups"][0]["params"])
            if isinstance(optimizer, torch.optim.Optimizer):
                torch_state.set_optimizer_state_dict(
                    plain, plain_optimizer, copy.deepcopy(found))
            on_rank0 = self.sherd.optimizer_state_dict(handle, optimizer, "rank0")
            self.assertEqual(bool(on_rank0), ranks.rank() == 0)
            handle.close()
            # The other way.
            model = decoder()
            handle = self.sherd.fully_shard(model)
            handle.load_state_dict(plain.state_dict())
            optimizer = make(handle)
            self.sherd.load_optimizer_state_dict(
                handle, optimizer, expected if ranks.rank() == 0 else {})
            self.close_to(self.sherd.optimizer_state_dict(
                handle, optimizer)["state"], expected["state"])
            handle.close()

    def test_training_continues_from_a_checkpoint_bit_for_bit(self):
        for name, make in self.makers().items():
            with self.folder() as folder:
                model = decoder()
                handle = self.sherd.fully_shard(model)
                optimizer = make(handle)
                train(model, optimizer, range(2))
                self.sherd.save(folder, 2, handle, optimizer, {"seed": "7"})
                expected = train(model, optimizer, range(2, 4))
                handle.close()
                model = changed(decoder())
                handle = self.sherd.fully_shard(model)
                optimizer = make(handle)
                report = self.sherd.load(folder, handle, optimizer)
                self.assertEqual((report.step, report.values), (2, {"seed": "7"}))
                self.assertEqual(
                    train(model, optimizer, range(2, 4)), expected, name)
                handle.close()

    def muon_and_adamw(self, handle):
        matrices, rest = self.sherd.split(handle, "[02].weight")
        return {"muon": self.sherd.Muon(matrices, lr=0.02, scale="match_rms_adamw"),
                "adamw": self.sherd.AdamW(rest, lr=1e-2, eps=1e-4)}

    def both_kinds(self):
        """Sharded and replicated modules: a function that makes the handle, and one of
        a handle that returns all values."""
        return ((lambda model: self.sherd.fully_shard(model, share_gradients=True),
                 lambda handle: handle.state_dict()),
                (self.sherd.replicate, lambda handle: handle.module.state_dict()))

    def test_muon_for_matrices_and_adamw_for_the_rest(self):
        plain = with_bias_and_norm()
        named = dict(plain.named_parameters())
        matrices = [named.pop("0.weight"), named.pop("2.weight")]
        theirs = [torch.optim.Muon(matrices, lr=0.02, adjust_lr_fn="match_rms_adamw"),
                  torch.optim.AdamW(named.values(), lr=1e-2, eps=1e-4)]
        train_by_several(plain, theirs, range(3))
        for make, values_of in self.both_kinds():
            handle = make(with_bias_and_norm())
            ours = self.muon_and_adamw(handle)
            train_by_several(handle.module, ours.values(), range(3))
            self.close_to({"model": values_of(handle)}, {"model": plain.state_dict()})
            state = self.sherd.optimizer_state_dict(handle, ours)
            self.assertEqual(set(state["state"]), set(dict(plain.named_parameters())))
            self.close_to(
                {"2.weight": state["state"]["2.weight"]},
                {"2.weight": theirs[0].state[matrices[1]]})
            self.assertEqual([group["params"] for group in state["param_groups"]],
                             [["0.weight", "2.weight"], list(named)])
            handle.close()

    def test_muon_and_adamw_continue_bit_for_bit(self):
        sherd = self.sherd
        for make, values_of in self.both_kinds():
            with self.folder() as folder:
                handle = make(with_bias_and_norm())
                ours = self.muon_and_adamw(handle)
                train_by_several(handle.module, ours.values(), range(2))
                sherd.save(folder, 2, handle, ours)
                state = sherd.optimizer_state_dict(handle, ours)
                begun = {name: value.clone() for name, value in values_of(handle).items()}
                train_by_several(handle.module, ours.values(), range(2, 4))
                expected = values_of(handle)

                def loaded(handle, ours):
                    sherd.load(folder, handle, ours)  # pylint: disable=cell-var-from-loop

                def set_state(handle, ours):
                    # pylint: disable=cell-var-from-loop
                    into = handle if hasattr(handle, "state_dict") else handle.module
                    into.load_state_dict(begun)
                    sherd.load_optimizer_state_dict(handle, ours, state)

                for load in (loaded, set_state):
                    again = make(changed(with_bias_and_norm()))
                    ours = self.muon_and_adamw(again)
                    ours["muon"].lr = 1.0
                    load(again, ours)
                    self.assertEqual(ours["muon"].lr, 0.02)
                    parts = sherd.optimizer_state_dict(again, ours, "sharded")
                    sherd.load_optimizer_state_dict(again, ours, parts)
                    train_by_several(again.module, ours.values(), range(2, 4))
                    for name, value in values_of(again).items():
                        self.assertTrue(torch.equal(value, expected[name]), name)
                    again.close()
                handle.close()

    def test_several_optimizers_have_different_parameters(self):
        handle = self.sherd.fully_shard(with_bias_and_norm())
        matrices, rest = self.sherd.split(handle, ["[02].weight"])
        adamw_of_all = self.sherd.AdamW(handle)
        for wrong, text in (
                ({"adamw": adamw_of_all, "sgd": self.sherd.SGD(rest)}, "different parts"),
                ({}, "found a dict"),
                ({"sgd": self.sherd.SGD(matrices), "torch": adamw(handle)},
                 "several of sherd's")):
            with self.assertRaisesRegex(self.sherd.InvalidArgumentError, text):
                self.sherd.optimizer_state_dict(handle, wrong)
        handle.close()

    def test_hyperparameters_come_back(self):
        with self.folder() as folder:
            handle = self.sherd.fully_shard(nn.Linear(3, 5))
            optimizer = adamw(handle)
            optimizer.param_groups[0]["lr"] = 0.125
            optimizer.param_groups[0]["betas"] = (0.5, 0.75)
            optimizer.param_groups[0]["when"] = [1, 2]
            self.sherd.save(folder, 1, handle, optimizer)
            again = adamw(handle)
            self.sherd.load(folder, handle, again, step=1)
            group = again.param_groups[0]
            self.assertEqual((group["lr"], group["betas"]), (0.125, (0.5, 0.75)))
            self.assertEqual(group["when"], [1, 2])
            handle.close()

    def test_everything_of_a_module_is_kept(self):
        with self.folder() as folder:
            source = self.sherd.fully_shard(
                changed(WithEverything()), ignored=["alone"])
            target = self.sherd.fully_shard(WithEverything(), ignored=["alone"])
            saver = self.sherd.CheckpointSaver(
                folder, source, asynchronous=True, keep_last=1)
            for step in (1, 2):
                saver.save(step)
            saver.wait()
            self.assertEqual(saver.newest(), os.path.join(folder, "step-2"))
            self.assertFalse(saver.saving())
            self.assertEqual(self.sherd.load(folder, target).step, 2)
            expected = source.state_dict()
            for name, value in target.state_dict().items():
                if isinstance(value, torch.Tensor):
                    self.assertTrue(torch.equal(value, expected[name]), name)
            self.assertEqual(target.module.note, "two")
            source.close()
            target.close()

    def test_replicas_save_and_load_the_same_checkpoints(self):
        with self.folder() as folder:
            model = decoder()
            handle = self.sherd.replicate(model)
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            train(model, optimizer, range(2))
            self.sherd.save(folder, 2, handle, optimizer)
            expected = self.sherd.optimizer_state_dict(handle, optimizer)
            sharded = self.sherd.fully_shard(decoder())
            ours = self.sherd.AdamW(sharded, lr=1e-2)
            self.sherd.load(folder, sharded, ours)
            for name, tensor in sharded.state_dict().items():
                self.assertTrue(torch.equal(tensor, model.state_dict()[name]))
            self.close_to(
                self.sherd.optimizer_state_dict(sharded, ours)["state"],
                expected["state"], 0)
            sharded.close()
            handle.close()

    def test_the_command_reads_them_and_other_numbers_of_ranks_load_them(self):
        with self.folder() as folder:
            model = decoder()
            handle = self.sherd.fully_shard(model)
            optimizer = adamw(handle)
            train(model, optimizer, range(1))
            self.sherd.save(folder, 1, handle, optimizer)
            whole = handle.state_dict()
            handle.close()
            if ranks.rank() == 0:
                self.read_by_the_command(folder, whole)
            alone = decoder()
            handle = self.sherd.fully_shard(alone, self.sherd.World.single())
            optimizer = self.sherd.AdamW(handle)
            self.sherd.load(folder, handle, optimizer)
            for name, tensor in handle.state_dict().items():
                self.assertTrue(torch.equal(tensor, whole[name]), name)
            handle.close()

    def read_by_the_command(self, folder, whole):
        def run(*words):
            return subprocess.run(
                [SHERD, "checkpoint", *words], check=True, capture_output=True,
                text=True, timeout=120).stdout
        run("verify", folder)
        shown = json.loads(run("inspect", "--json", folder))
        self.assertEqual(shown["step"], 1)
        run("merge", "--torch", folder, os.path.join(folder, "merged"))
        merged = torch.jit.load(os.path.join(folder, "merged", "model.pt"))
        found = dict(merged.named_parameters())
        self.assertEqual(found.keys() | {"3.weight"}, whole.keys())  # Tied.
        for name, tensor in found.items():
            self.assertTrue(torch.equal(tensor, whole[name]), name)

    def test_mistakes_are_told_on_every_rank(self):
        sherd = self.sherd
        handle = sherd.fully_shard(nn.Linear(3, 5))
        optimizer = adamw(handle)
        handle.module(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        state = sherd.optimizer_state_dict(handle, optimizer)
        sgd = torch.optim.SGD(handle.parameters(), lr=0.1, momentum=0.9)
        for other in (sgd, sherd.SGD(handle), sherd.SGD(handle, momentum=0.9)):
            with self.assertRaisesRegex(sherd.Error, "that of another optimizer"):
                sherd.load_optimizer_state_dict(handle, other, state)
        wrong = copy.deepcopy(state)
        wrong["state"]["bias"]["exp_avg"] = torch.ones(4)
        with self.assertRaisesRegex(sherd.Error, r"exp_avg.bias: expected F32 \[5\]"):
            sherd.load_optimizer_state_dict(handle, optimizer, wrong)
        wrong = copy.deepcopy(state)
        wrong["param_groups"][0]["params"] = ["weight"]
        with self.assertRaisesRegex(sherd.Error, r"groups of 2 \(weight, bias\), found 1"):
            sherd.load_optimizer_state_dict(handle, optimizer, wrong)
        wrong["param_groups"] = [{"params": ["bias"]}, {"params": ["weight"]}]
        with self.assertRaisesRegex(sherd.Error, "have the same names in other groups"):
            sherd.load_optimizer_state_dict(handle, optimizer, wrong)
        with self.assertRaisesRegex(sherd.Error, "of state and param_groups, found"):
            sherd.load_optimizer_state_dict(handle, optimizer, {"bias": 1})
        stranger = torch.optim.SGD([torch.ones(3, requires_grad=True)])
        with self.assertRaisesRegex(sherd.Error, r"none of them"):
            sherd.optimizer_state_dict(handle, stranger)
        with self.assertRaisesRegex(sherd.Error, "found a dict"):
            sherd.optimizer_state_dict(handle, {})
        # None of these has changed anything.
        self.close_to(sherd.optimizer_state_dict(handle, optimizer)["state"],
                      state["state"], 0)
        handle.close()

    def test_parts_of_another_layout_are_refused_before_anything_changes(self):
        from sherd._shard_tensor import ShardTensor  # pylint: disable=C0415
        sherd = self.sherd
        for make in (adamw, sherd.AdamW):
            model = nn.Linear(3, 5)
            handle = sherd.fully_shard(model)
            optimizer = make(handle)
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            before = sherd.optimizer_state_dict(handle, optimizer)
            parts = sherd.optimizer_state_dict(handle, optimizer, "sharded")
            mine = parts["state"]
            moved = next(iter(mine), None)  # A rank may have no slice at all.
            for change in (lambda part: (part.shape, part.elements, part.begin + 1),
                           lambda part: (part.shape, part.elements[:-1], part.begin),
                           lambda part: ((99,), part.elements, part.begin)):
                wrong = {name: {
                    key: ShardTensor(value.shape, value.elements + 1, value.begin)
                    if isinstance(value, ShardTensor) else value + 1
                    for key, value in of_one.items()} for name, of_one in mine.items()}
                if moved:
                    wrong[moved]["exp_avg_sq"] = ShardTensor(
                        *change(mine[moved]["exp_avg_sq"]))
                with self.assertRaisesRegex(
                        sherd.InvalidArgumentError,
                        r"exp_avg_sq of .*: expected elements .*, found elements"):
                    sherd.load_optimizer_state_dict(
                        handle, optimizer, parts | {"state": wrong})
            other = {"exp_avg_sq": torch.ones(3)} | mine.get(moved, {})
            with self.assertRaisesRegex(sherd.InvalidArgumentError, "nothing on this rank"):
                sherd.load_optimizer_state_dict(handle, optimizer, parts | {
                    "state": mine | {"nobody's": other}})
            self.close_to(
                sherd.optimizer_state_dict(handle, optimizer)["state"], before["state"], 0)
            sherd.load_optimizer_state_dict(handle, optimizer, parts)
            self.close_to(
                sherd.optimizer_state_dict(handle, optimizer)["state"], before["state"], 0)
            handle.close()

    def test_what_a_checkpoint_does_not_have_stays_without_strict(self):
        sherd = self.sherd
        with self.folder() as folder:
            model = nn.Linear(3, 5)
            handle = sherd.fully_shard(model)
            sherd.save(folder, 1, handle)
            bias = [slice for name, slice in handle.named_parameters() if name == "bias"]
            for make in (adamw, sherd.AdamW):
                optimizer = make(handle)
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                before = sherd.optimizer_state_dict(handle, optimizer)["state"]
                self.assertEqual(set(before), {"weight", "bias"})
                sherd.load(folder, handle, optimizer, step=1, strict=False)
                self.close_to(
                    sherd.optimizer_state_dict(handle, optimizer)["state"], before, 0)
            # One that has the state of some parameters.
            optimizer = adamw(handle)
            model(torch.ones(2, 3)).sum().backward()
            for slice in bias:
                slice.grad = None
            optimizer.step()
            sherd.save(folder, 2, handle, optimizer)
            saved = sherd.optimizer_state_dict(handle, optimizer)["state"]
            self.assertEqual(set(saved), {"weight"})
            for make in (adamw, sherd.AdamW):
                optimizer = make(handle)
                for strict in (False, True):
                    model(torch.ones(2, 3)).sum().backward()
                    optimizer.step()
                    before = sherd.optimizer_state_dict(handle, optimizer)["state"]
                    sherd.load(folder, handle, optimizer, step=2, strict=strict)
                    self.close_to(
                        sherd.optimizer_state_dict(handle, optimizer)["state"],
                        saved if strict else saved | {"bias": before["bias"]}, 0)
            handle.close()

    def test_a_model_with_another_head_takes_the_rest_without_strict(self):
        sherd = self.sherd

        def made(head):
            torch.manual_seed(0)
            return sherd.fully_shard(nn.Sequential(collections.OrderedDict([
                ("b", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))),
                (head, nn.Linear(3, 2))])))

        def in_two_groups(handle):
            groups = {True: [], False: []}
            for name, part in handle.named_parameters():
                groups[name.startswith("b.")].append(part)
            return torch.optim.AdamW([
                {"params": groups[True], "lr": lrs[0]},
                {"params": groups[False], "lr": lrs[1]}])

        def state_of(handle, optimizer):
            return sherd.optimizer_state_dict(handle, optimizer)["state"]

        def trained(head, make, values):
            handle = made(head)
            optimizer = make(handle)
            handle.module(torch.full((2, 3), values)).sum().backward()
            optimizer.step()
            return handle, optimizer

        for make in (adamw, sherd.AdamW, in_two_groups):
            with self.folder() as folder, self.subTest(make=make):
                lrs = (0.5, 0.25)
                source, optimizer = trained("x", make, 1.0)
                saved = sherd.optimizer_state_dict(source, optimizer)
                sherd.save(folder, 1, source, optimizer)
                lrs = (0.1, 0.2)
                target, optimizer = trained("y", make, 3.0)
                before = state_of(target, optimizer)
                with self.assertRaisesRegex(
                        sherd.Error, "only the first have y.bias, y.weight; "
                        "only the second have x.bias, x.weight"):
                    sherd.load_optimizer_state_dict(target, optimizer, saved)
                report = sherd.load(folder, target, optimizer, strict=False)
                self.assertIn("model y.bias", report.missing)
                found = state_of(target, optimizer)
                for name, expected in before.items():
                    expected = saved["state"].get(name, expected)
                    self.close_to({name: found[name]}, {name: expected}, 0)
                if make is in_two_groups:
                    self.assertEqual(
                        [group["lr"] for group in optimizer.param_groups], [0.5, 0.2])
                target.close()
                source.close()

    def test_mistakes_with_folders_are_told_on_every_rank(self):
        sherd = self.sherd
        with self.folder() as folder:
            handle = sherd.fully_shard(nn.Linear(3, 5))
            self.assertIsNone(sherd.load(folder, handle))
            sherd.save(folder, 1, handle)
            with self.assertRaisesRegex(sherd.Error, "with the state of an optimizer"):
                sherd.load(folder, handle, adamw(handle))
            with self.assertRaisesRegex(sherd.UnavailableError, "step-9"):
                sherd.load(folder, handle, step=9)
            with self.assertRaisesRegex(sherd.Error, "texts by name, found 'a': 1"):
                sherd.save(folder, 2, handle, values={"a": 1})
            for other, text in ((nn.Linear(5, 5), r"expected shape \[5, 5\]"),
                                (nn.Linear(3, 5, bias=False), "lacks, found bias"),
                                (nn.Sequential(nn.Linear(3, 5)), "found no 0.bias")):
                wrong = sherd.fully_shard(other)
                with self.assertRaisesRegex(sherd.Error, text):
                    sherd.load(folder, wrong)
                wrong.close()
            optimizer = adamw(handle)
            handle.module(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            sherd.save(folder, 3, handle, optimizer)
            with self.assertRaisesRegex(sherd.Error, "that of another optimizer"):
                sherd.load(folder, handle, sherd.SGD(handle, momentum=0.9))
            # A newest one that is damaged.
            expected = handle.state_dict()
            sherd.save(folder, 4, handle, optimizer)
            if ranks.rank() == 0:
                for name in os.listdir(os.path.join(folder, "step-4")):
                    if name.endswith(".safetensors"):
                        os.truncate(os.path.join(folder, "step-4", name), 9)
            self.world.barrier()
            self.assertEqual(sherd.load(folder, handle, optimizer).step, 3)
            for name, tensor in handle.state_dict().items():
                self.assertTrue(torch.equal(tensor, expected[name]))
            handle.close()

    def test_an_optimizer_may_have_parameters_that_are_frozen(self):
        from sherd import _optimizer_state  # pylint: disable=import-outside-toplevel
        with self.folder() as folder:
            handles = []
            for _ in range(2):
                model = half_frozen()
                handle = self.sherd.replicate(model)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                handles.append((handle, optimizer))
                # For sherd.ft.Session.
                read = _optimizer_state.reader_of(
                    optimizer, list(handle.core_parameters.items()))
                self.assertEqual({name for name, *_ in read()}, {"1.weight", "1.bias"})
            (source, trained), (target, fresh) = handles
            source.module(torch.ones(2, 3)).sum().backward()
            trained.step()
            self.sherd.save(folder, 1, source, trained)
            self.sherd.load(folder, target, fresh)
            expected = self.sherd.optimizer_state_dict(source, trained)["state"]
            self.assertEqual(set(expected), {"1.weight", "1.bias"})
            self.close_to(
                self.sherd.optimizer_state_dict(target, fresh)["state"], expected, 0)
            source.close()
            target.close()

    def test_frozen_parameters_pass_between_sharded_and_replicated(self):
        sherd = self.sherd
        kinds = {sherd.replicate: lambda h: torch.optim.AdamW(h.module.parameters()),
                 sherd.fully_shard: adamw}
        for save, load in itertools.permutations(kinds):
            for ours in (False, True):
                with self.folder() as folder, self.subTest(to=load, ours=ours):
                    source, target = save(half_frozen()), load(half_frozen())
                    trained, fresh = (
                        sherd.AdamW(source) if ours else kinds[save](source),
                        sherd.AdamW(target) if ours else kinds[load](target))
                    source.module(torch.ones(2, 3)).sum().backward()
                    trained.step()
                    sherd.save(folder, 1, source, trained)
                    sherd.load(folder, target, fresh)
                    expected = sherd.optimizer_state_dict(source, trained)
                    self.assertEqual(set(expected["state"]), {"1.weight", "1.bias"})
                    self.close_to(sherd.optimizer_state_dict(target, fresh)["state"],
                                  expected["state"], 0)
                    sherd.load_optimizer_state_dict(target, fresh, expected)
                    if save is sherd.replicate:  # What is trained here must be there.
                        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
                        trained_here = load(model)
                        with self.assertRaisesRegex(sherd.Error, "parameter groups of 4"):
                            sherd.load(folder, trained_here, sherd.AdamW(trained_here))
                        trained_here.close()
                    target.close()
                    source.close()

    def test_parameters_without_elements_are_saved_and_loaded(self):
        def make():
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 0), nn.Linear(0, 2))
            model.none = nn.Parameter(torch.empty(0, 3))
            return model

        def equal(handle, expected):
            found = handle.state_dict()
            self.assertEqual(list(found), list(expected))
            for name, tensor in expected.items():
                self.assertEqual(found[name].dtype, tensor.dtype, name)
                self.assertTrue(torch.equal(found[name], tensor), name)

        before = make().state_dict()
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange), self.folder() as folder:
                expected = changed(make()).state_dict()
                source = self.sherd.fully_shard(changed(make()), exchange=exchange)
                target = self.sherd.fully_shard(make(), exchange=exchange)
                for kind in ("full", "rank0", "sharded"):
                    target.load_state_dict(source.state_dict(kind))
                    equal(target, expected)
                    target.load_state_dict(before)
                self.sherd.save(folder, 1, source, adamw(source))
                self.sherd.load(folder, target, adamw(target))
                equal(target, expected)
                target.close()
                source.close()

    def nested(self, model):
        """Two handles of one model."""
        return [self.sherd.fully_shard(model[1], exchange="messages"),
                self.sherd.fully_shard(model, exchange="messages", ignored=["1"])]

    def test_b4_what_two_handles_have_sharded_is_saved_by_both(self):
        plain = decoder()
        of_inner = {f"1.{name}": value for name, value in plain[1].state_dict().items()}
        of_outer = {name: value for name, value in plain.state_dict().items()
                    if name not in of_inner}
        inner, outer = self.nested(decoder())
        whole = outer.state_dict()
        self.assertEqual(list(whole), list(of_outer))
        whole |= {f"1.{name}": value for name, value in inner.state_dict().items()}
        decoder().load_state_dict(whole)
        for name, value in plain.state_dict().items():
            self.assertTrue(torch.equal(whole[name], value), name)
        self.assertEqual(
            list(self.sherd.TrainingState(outer).state_dict()["model"]), list(of_outer))
        with self.folder() as folder:
            for name, handle in (("inner", inner), ("outer", outer)):
                self.sherd.save(os.path.join(folder, name), 1, handle)
            handles = self.nested(changed(decoder()))
            for name, handle in zip(("inner", "outer"), handles):
                self.sherd.load(os.path.join(folder, name), handle)
            for handle, expected in zip(handles, (plain[1].state_dict(), of_outer)):
                for name, value in handle.state_dict().items():
                    self.assertTrue(torch.equal(value, expected[name]), name)
                handle.load_state_dict(expected)
        for handle in (*handles, outer, inner):
            handle.close()

    def test_who_handles_the_error_of_a_save_may_save_again(self):
        with self.folder() as folder:
            handle = self.sherd.fully_shard(nn.Linear(3, 5))
            kept = []  # With their tracebacks; assertRaises() would clear those.
            for values, step in (({"a": 1}, 1), (None, -1)):
                try:
                    self.sherd.save(folder, step, handle, values=values)
                except self.sherd.Error as error:
                    kept.append(error)
                    self.sherd.save(folder, 2, handle)
            self.assertEqual(len(kept), 2)
            handle.close()

    def test_an_error_keeps_nothing_alive_once_it_is_handled(self):
        handle = self.sherd.fully_shard(nn.Linear(3, 5))

        class State(dict):
            pass

        def gone_after_an_error():
            state = State(weight=torch.zeros(9, 9))
            with contextlib.suppress(self.sherd.Error):
                handle.load_state_dict(state)
            return weakref.ref(state)

        gc.disable()
        self.addCleanup(gc.enable)
        self.assertIsNone(gone_after_an_error()())
        handle.close()


if __name__ == "__main__":
    ranks.main()
