# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint and transformers save and load sharded modules.

What needs transformers or NumPy is left out, with a line that says so, where it is
not installed (scripts/setup puts both into build/clients, where it can)."""

import importlib.util
import itertools
import math
import os
import pathlib
import random
import shutil
import sys
import tempfile
import unittest
import warnings

# Before torch, which looks for NumPy when it is imported.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "build" / "clients"))

# pylint: disable=wrong-import-position
import ranks
import torch
import torch.distributed as dist
from checkpoint_test import train
from fully_shard_test import decoder
from state_test import WithEverything, changed
from torch.distributed import checkpoint as dcp


def installed(package):
    return importlib.util.find_spec(package) is not None


class Boxes(unittest.TestCase):
    def test_boxes_are_the_elements_in_order(self):
        from sherd._shard_tensor import boxes  # pylint: disable=import-outside-toplevel
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        generator = random.Random(seed)
        for _ in range(200):
            shape = tuple(generator.randint(1, 4)
                          for _ in range(generator.randint(0, 4)))
            numel = math.prod(shape)
            begin, end = sorted(generator.randint(0, numel) for _ in range(2))
            indices = list(itertools.product(*(range(size) for size in shape)))
            found = boxes(shape, begin, end)
            self.assertLessEqual(len(found), max(1, 2 * len(shape) - 1))
            of_boxes = []
            for offsets, sizes in found:
                ranges = (range(o, o + s) for o, s in zip(offsets, sizes))
                of_boxes += itertools.product(*ranges)
            self.assertEqual(of_boxes, indices[begin:end], (shape, begin, end))
        self.assertEqual(boxes((3, 0), 0, 0), [((0, 0), (3, 0))])


@unittest.skipUnless(
    installed("numpy"), "torch.distributed sends no objects without NumPy")
class Clients(unittest.TestCase):
    failed = False

    @classmethod
    def setUpClass(cls):
        import sherd  # pylint: disable=import-outside-toplevel
        from sherd import _together  # pylint: disable=import-outside-toplevel
        cls.sherd = sherd
        cls.world = sherd.World.from_environment()
        cls.mine = tempfile.mkdtemp() if ranks.rank() == 0 else None
        cls.scratch = _together.gathered(cls.world, cls.mine)[0]
        dist.init_process_group(
            "gloo", rank=ranks.rank(), world_size=ranks.size(),
            store=dist.FileStore(os.path.join(cls.scratch, "store"), ranks.size()))

    @classmethod
    def tearDownClass(cls):
        if not cls.failed:  # Others may wait elsewhere otherwise.
            cls.world.barrier()
            dist.destroy_process_group()
        if cls.mine:
            shutil.rmtree(cls.mine, ignore_errors=True)

    def run(self, result=None):
        result = super().run(result)
        Clients.failed = Clients.failed or not result.wasSuccessful()
        return result

    def folder(self, name):
        return os.path.join(self.scratch, name)

    def shard(self, module):
        return self.sherd.fully_shard(module, self.world)

    def test_stateful_saves_and_loads_parts(self):
        model = decoder()
        handle = self.shard(model)
        optimizer = torch.optim.AdamW(handle.parameters(), lr=1e-2)
        train(model, optimizer, range(2))
        state = {"job": self.sherd.TrainingState(handle, optimizer)}
        self.assertIsInstance(state["job"], dcp.stateful.Stateful)
        dcp.save(state, checkpoint_id=self.folder("parts"))
        whole = handle.state_dict()
        moments = self.sherd.optimizer_state_dict(handle, optimizer)
        expected = train(model, optimizer, range(2, 4))
        handle.close()

        # PyTorch reads it into a plain module.
        plain = changed(decoder())
        dcp.load({"job": {"model": plain.state_dict()}},
                 checkpoint_id=self.folder("parts"))
        for name, tensor in plain.state_dict().items():
            self.assertTrue(torch.equal(tensor, whole[name]), name)

        for make in (lambda h: torch.optim.AdamW(h.parameters(), lr=0.5),
                     lambda h: self.sherd.AdamW(h, lr=0.5)):
            model = changed(decoder())
            handle = self.shard(model)
            optimizer = make(handle)
            dcp.load({"job": self.sherd.TrainingState(handle, optimizer)},
                     checkpoint_id=self.folder("parts"))
            found = self.sherd.optimizer_state_dict(handle, optimizer)
            self.assertEqual(found["param_groups"][0]["lr"], 1e-2)
            for name, of_one in moments["state"].items():
                for key, tensor in of_one.items():
                    self.assertTrue(torch.equal(found["state"][name][key], tensor))
            losses = train(model, optimizer, range(2, 4))
            for ours, theirs in zip(losses, expected):
                self.assertAlmostEqual(ours, theirs, places=5)
            handle.close()

    def test_a_replicated_module_is_saved_and_loaded(self):
        model, other = changed(decoder()), decoder()
        handles = [self.sherd.replicate(one, self.world) for one in (model, other)]
        optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2)
                      for one in (model, other)]
        train(model, optimizers[0], range(1))
        source, target = (
            {"job": self.sherd.TrainingState(handle, optimizer)}
            for handle, optimizer in zip(handles, optimizers))
        dcp.save(source, checkpoint_id=self.folder("replicas"))
        dcp.load(target, checkpoint_id=self.folder("replicas"))
        for name, tensor in other.state_dict().items():
            self.assertTrue(torch.equal(tensor, model.state_dict()[name]), name)
        found, expected = (
            self.sherd.optimizer_state_dict(handle, optimizer)["state"]
            for handle, optimizer in zip(handles, optimizers))
        self.assertEqual(set(found), set(expected))
        for name, of_one in expected.items():
            for key, tensor in of_one.items():
                self.assertTrue(torch.equal(found[name][key], tensor), (name, key))
        for handle in handles:
            handle.close()

    def test_parts_of_a_plain_module_and_of_other_ranks(self):
        plain = changed(WithEverything())
        dcp.save({"model": plain.state_dict()}, checkpoint_id=self.folder("plain"))
        for where in (self.world, self.sherd.World.single()):
            handle = self.sherd.fully_shard(WithEverything(), where)
            state = handle.state_dict("sharded")
            dcp.load({"model": state}, checkpoint_id=self.folder("plain"))
            handle.load_state_dict(state)
            found = handle.state_dict()
            for name, value in plain.state_dict().items():
                if isinstance(value, torch.Tensor):
                    self.assertTrue(torch.equal(found[name], value), name)
            handle.close()

    def test_a_handle_is_stateful_too(self):
        handle = self.shard(changed(WithEverything()))
        dcp.save({"model": handle}, checkpoint_id=self.folder("handle"))
        other = self.shard(WithEverything())
        dcp.load({"model": other}, checkpoint_id=self.folder("handle"))
        for name, value in handle.state_dict().items():
            if isinstance(value, torch.Tensor):
                self.assertTrue(torch.equal(other.state_dict()[name], value), name)
        handle.close()
        other.close()

    def test_asynchronous_saves(self):
        handle = self.shard(changed(decoder()))
        state = {"job": self.sherd.TrainingState(handle)}
        future = dcp.async_save(state, checkpoint_id=self.folder("later"))
        expected = handle.state_dict()
        handle.load_state_dict(decoder().state_dict())  # Saved is what was there.
        future.result()
        plain = decoder()
        dcp.load({"job": {"model": plain.state_dict()}},
                 checkpoint_id=self.folder("later"))
        for name, tensor in plain.state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        handle.close()

    @unittest.skipUnless(installed("transformers"), "transformers is not installed")
    def test_transformers_saves_and_loads(self):
        import transformers  # pylint: disable=import-outside-toplevel
        config = transformers.GPT2Config(
            n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32,
            bos_token_id=0, eos_token_id=0)
        torch.manual_seed(3)
        model = transformers.GPT2LMHeadModel(config)
        expected = {name: tensor.clone()
                    for name, tensor in model.state_dict().items()}
        handle = self.shard(model)
        with self.assertRaisesRegex(self.sherd.Error, r"handle.state_dict\(\)"):
            model.save_pretrained(self.folder("wrong"))
        state = handle.state_dict("rank0")
        if ranks.rank() == 0:
            model.save_pretrained(self.folder("gpt2"), state_dict=state)
        self.world.barrier()
        again = transformers.GPT2LMHeadModel.from_pretrained(self.folder("gpt2"))
        for name, tensor in again.state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        torch.manual_seed(4)
        other = self.shard(transformers.GPT2LMHeadModel(config))
        other.load_state_dict(again.state_dict() if ranks.rank() == 0 else {})
        for name, tensor in other.state_dict().items():
            self.assertTrue(torch.equal(tensor, expected[name]), name)
        handle.close()
        other.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    ranks.main()
