# SPDX-License-Identifier: Apache-2.0
"""Models come and go: memory and threads stay as they were, forked children are
told, and a process may end as it likes."""

import gc
import os
import subprocess
import sys
import time
import unittest
import weakref

import ranks
import torch
from children import error_of, in_child
from torch import nn

CYCLES = 1000
KIB_MAX = 8192  # That the later cycles may add: 10 KiB each would be a leak.


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))


def step(model):
    model(torch.ones(2, 16)).sum().backward()


def resident_kib():
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("Rss:"))


def threads():
    return len(os.listdir("/proc/self/task"))


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((16,), float(index))


class Lifecycle(unittest.TestCase):
    def setUp(self):
        import sherd  # pylint: disable=import-outside-toplevel
        self.sherd = sherd

    def cycle(self, turn):
        model = mlp()
        if turn % 4 == 3:
            handle = self.sherd.replicate(model)
        else:
            handle = self.sherd.fully_shard(
                model, exchange=("shared_memory", "messages")[turn % 2])
        if turn % 10 == 0:
            step(model)
        handle.close()

    def test_memory_and_threads_stay_flat(self):
        # Connections and pools are made by the first cycles.
        warm = CYCLES // 5
        for turn in range(warm):
            self.cycle(turn)
        gc.collect()
        before = resident_kib(), threads()
        for turn in range(warm, CYCLES):
            self.cycle(turn)
        gc.collect()
        after = resident_kib(), threads()
        self.assertLessEqual(after[0] - before[0], KIB_MAX)
        self.assertEqual(after[1], before[1])

    def test_who_drops_a_module_frees_all(self):
        before = threads()
        for close in (True, False):
            model = mlp()
            handle = self.sherd.fully_shard(model)
            step(model)
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
            optimizer.step()
            gone = [weakref.ref(model), weakref.ref(handle),
                    weakref.ref(handle.parameters()[0])]
            if close:
                handle.close()
            del model, handle, optimizer
            gc.collect()
            self.assertEqual([ref() for ref in gone], [None] * 3)
        if ranks.size() == 1:
            self.assertEqual(threads(), before)

    def test_a_module_may_be_dropped_while_a_mode_is_on(self):
        """As when the garbage collector runs while torch.compile traces another one."""
        from torch._subclasses.fake_tensor import FakeTensorMode  # pylint: disable=C0415
        for make in (self.sherd.replicate, self.sherd.fully_shard):
            model = mlp()
            handle = make(model)
            step(model)
            gone = weakref.ref(model)
            with FakeTensorMode():
                del model, handle
                gc.collect()
            self.assertIsNone(gone())

    def test_slices_that_are_written_have_to_be_published(self):
        if ranks.size() == 1:
            return  # Alone a module is a plain one, whose parameters are the slices.
        for exchange in ("shared_memory", "messages"):
            model = mlp()
            handle = self.sherd.fully_shard(model, exchange=exchange)
            optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
            step(model)
            optimizer.step()
            with torch.no_grad():
                for part in handle.parameters():
                    part.clamp_(-0.01, 0.01)
            with self.assertRaisesRegex(self.sherd.Error, "a slice was written"):
                step(model)
            handle.publish()
            step(model)
            optimizer.step()
            for part in handle.parameters():
                part.data = torch.zeros_like(part)
            with self.assertRaisesRegex(self.sherd.Error, "was given other memory"):
                handle.publish()
            handle.close()

    def test_a_forked_child_is_told(self):
        handle = self.sherd.fully_shard(mlp())
        replica = self.sherd.replicate(mlp())
        module = handle.module
        acts = [handle.publish, handle.close, replica.average_parameters,
                lambda: self.sherd.fully_shard(mlp()),
                self.sherd.World.from_environment]
        if ranks.size() > 1:  # Alone a module is a plain one.
            acts.append(lambda: module(torch.ones(2, 16)))
        text, code = in_child(lambda: "\n".join(map(error_of, acts)))
        self.assertEqual(code, 0)
        for line in text.splitlines():
            self.assertRegex(line, "^FailedPreconditionError: .*forked")
        self.assertEqual(len(text.splitlines()), len(acts))
        step(module)  # The parent goes on.
        step(replica.module)
        handle.close()
        replica.close()

    def test_workers_of_a_data_loader_notice_nothing(self):
        handle = self.sherd.fully_shard(mlp())
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=2)
        seen = 0
        for batch in loader:
            handle.module(batch).sum().backward()
            seen += len(batch)
        self.assertEqual(seen, 8)
        handle.close()

    def test_threads_may_train(self):
        import threading  # pylint: disable=import-outside-toplevel
        handle = self.sherd.fully_shard(mlp())
        errors = []
        thread = threading.Thread(
            target=lambda: errors.append(error_of(lambda: step(handle.module))))
        thread.start()
        thread.join()
        # The system's thread ends a moment later, and others count threads.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            time.sleep(0.001)
        self.assertEqual(errors, ["no error"])
        handle.close()


PLACES = []  # The package's folder and the command sherd.
ENDS = {
    "keeping all": "import builtins; builtins.kept = [model, handle, optimizer]",
    "in a scope": "scope = handle.no_sync(); scope.__enter__(); sys.exit(0)",
}


class Ends(unittest.TestCase):
    """Of a whole process, started by rank 0 alone."""

    def setUp(self):
        if ranks.size() > 1:
            self.skipTest("one process starts them")

    def run_two_ranks(self, end):
        """What `sherd run` gives of a training step and then the lines of `end`."""
        package, sherd = PLACES
        program = (
            "import os, sys, torch\n"
            f"sys.path.insert(0, {package!r})\n"
            "import sherd\n"
            "model = torch.nn.Sequential(torch.nn.Linear(4, 4))\n"
            "handle = sherd.fully_shard(model, sync_module_states=True)\n"
            "optimizer = torch.optim.AdamW(handle.parameters())\n"
            "model(torch.ones(2, 4)).sum().backward()\n"
            "optimizer.step()\n" + end)
        return subprocess.run(
            [sherd, "run", "-n", "2", "--", sys.executable, "-W", "ignore", "-c",
             program],
            timeout=200, capture_output=True, text=True, check=False)

    def test_without_a_word(self):
        for name, end in ENDS.items():
            with self.subTest(name):
                done = self.run_two_ranks(end)
                said = [line for line in done.stderr.splitlines() if "sherd" in line]
                self.assertEqual((done.returncode, said), (0, []), done.stderr)

    def test_the_others_hear_of_a_rank_that_ends_with_a_code(self):
        # Long before the deadline of the world, 600 s, and so does this test.
        done = self.run_two_ranks(
            "if os.environ['RANK'] == '1': sys.exit(3)\n"
            "model(torch.ones(2, 4)).sum().backward()\n")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stderr, "PeerLostError: .*rank 1 has left")


if __name__ == "__main__":
    PLACES.extend(sys.argv[1:3])
    ranks.main()
