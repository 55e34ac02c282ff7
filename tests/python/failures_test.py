# SPDX-License-Identifier: Apache-2.0
"""What goes wrong on one rank ends on all of them: exceptions, Ctrl-C, infinities.

Rank 0 and 1 of a process group of torch.distributed. Every case has a group of its
own, since a rank that has given up takes part no more.
"""

import contextlib
import os
import re
import signal
import threading
import time
import unittest
import unittest.mock

import ranks
import torch
import torch.distributed as dist
from torch import nn

DEADLINE_S = 100.0


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))


def main_thread_sleeps():
    with open(f"/proc/self/task/{os.getpid()}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"


def interrupt_soon():
    """Ctrl-C, once the main thread waits; if that is never seen, it comes all the same."""
    def send():
        end = time.monotonic() + DEADLINE_S / 4
        asleep = 0
        # Once alone, it may have waited for a lock of the interpreter.
        while asleep < 2 and time.monotonic() < end:
            time.sleep(0.1)
            asleep = asleep + 1 if main_thread_sleeps() else 0
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send).start()


class Failures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        import sherd  # pylint: disable=import-outside-toplevel
        cls.sherd = sherd
        dist.init_process_group("gloo")
        # For what ranks say to each other besides.
        cls.keys = dist.PrefixStore("test", dist.distributed_c10d._get_default_store())

    @classmethod
    def tearDownClass(cls):
        dist.destroy_process_group()

    def sharded(self, exchange, make=mlp):
        group = dist.new_group([0, 1])
        world = self.sherd.World.from_process_group(group, deadline_s=DEADLINE_S)
        return self.sherd.fully_shard(make(), world, exchange=exchange)

    def first(self, what):
        """Rank 1 goes on when rank 0 has said so."""
        self.keys.set(what, "1")

    def then(self, what):
        self.keys.wait([what])

    def told(self, of_rank, act):
        """`act` fails at once, because of what that rank did."""
        begun = time.monotonic()
        with self.assertRaisesRegex(self.sherd.Error, f"rank {of_rank}") as caught:
            act()
        self.assertLess(time.monotonic() - begun, DEADLINE_S / 2)
        self.assertEqual(caught.exception.rank, ranks.rank())
        return caught.exception

    def test_an_exception_in_backward_reaches_the_others(self):
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange):
                handle = self.sharded(exchange)
                if ranks.rank() == 1:
                    def fail(*_):
                        raise ValueError("a hook has had enough")
                    handle.module[1].register_full_backward_pre_hook(fail)
                    loss = handle.module(torch.ones(2, 8)).sum()
                    with self.assertRaisesRegex(ValueError, "had enough"):
                        loss.backward()
                else:
                    loss = handle.module(torch.ones(2, 8)).sum()
                    error = self.told(1, loss.backward)
                    self.assertIn("had enough", str(error))
                handle.close()

    def test_a_rank_that_closes_after_an_exception_is_named(self):
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange):
                handle = self.sharded(exchange)
                if ranks.rank() == 0:
                    error = self.told(
                        1, lambda: handle.module(torch.ones(2, 8)).sum().backward())
                    self.assertIn(error.code, ("aborted", "peer_lost"))
                handle.close()

    def test_ctrl_c_in_a_gather_of_forward(self):
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange):
                handle = self.sharded(exchange)
                if ranks.rank() == 0:
                    with self.assertRaises(KeyboardInterrupt):
                        interrupt_soon()
                        handle.module(torch.ones(2, 8))
                    self.first("forward " + exchange)
                else:
                    self.then("forward " + exchange)
                    # In shared memory the values of rank 0 are still to be had.
                    error = self.told(
                        0, lambda: handle.module(torch.ones(2, 8)).sum().backward())
                    self.assertIn("interrupted", str(error))
                handle.close()

    def test_ctrl_c_in_backward(self):
        for exchange in ("shared_memory", "messages"):
            with self.subTest(exchange=exchange):
                handle = self.sharded(exchange)
                loss = handle.module(torch.ones(2, 8)).sum()
                if ranks.rank() == 0:
                    with self.assertRaises(KeyboardInterrupt):
                        interrupt_soon()
                        loss.backward()
                    self.first("backward " + exchange)
                else:
                    self.then("backward " + exchange)
                    self.assertIn("interrupted", str(self.told(0, loss.backward)))
                handle.close()

    def test_ctrl_c_while_the_others_do_not_come(self):
        group = dist.new_group([0, 1])
        if ranks.rank() == 0:
            with self.assertRaises(KeyboardInterrupt):
                interrupt_soon()
                self.sherd.World.from_process_group(group, deadline_s=DEADLINE_S)
            self.first("interrupted")
        else:
            self.then("interrupted")

    def test_signals_without_exceptions_do_not_end_waits(self):
        heard = []
        handle = self.sharded("messages")
        before = signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        if ranks.rank() == 0:
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        else:
            self.then("heard")
        if ranks.rank() == 0:
            def release():
                while not heard:
                    time.sleep(0.01)
                self.first("heard")
            threading.Thread(target=release).start()
        handle.module(torch.ones(2, 8)).sum().backward()
        self.assertEqual(len(heard), 1 - ranks.rank())
        signal.signal(signal.SIGINT, before)
        handle.close()

    def test_a_handler_that_runs_in_a_wait_may_not_call_a_handle(self):
        handle = self.sharded("messages")
        told = []

        def ask(*_):
            try:
                # As long as the program does not wait, it may.
                handle.report() if not told else handle.module(torch.ones(2, 8))
            except self.sherd.FailedPreconditionError as error:
                told.append(str(error))

        def interrupt():
            end = time.monotonic() + DEADLINE_S / 2
            while len(told) < 2 and time.monotonic() < end:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
            self.first("told")

        before = signal.signal(signal.SIGINT, ask)
        if ranks.rank() == 0:
            threading.Thread(target=interrupt).start()
        else:
            self.then("told")
        handle.module(torch.ones(2, 8)).sum().backward()
        signal.signal(signal.SIGINT, before)
        if ranks.rank() == 0:
            self.assertRegex(told[0], r"\[python\] expected .* found one in a handler")
            self.assertRegex(told[1], "uses a parameter .* in a handler of a signal")
        self.assertEqual(handle.report().backwards, 1)
        handle.close()

    def test_a_closed_world_of_a_process_group_is_made_anew(self):
        World = self.sherd.World
        group = dist.new_group([0, 1])
        world = World.from_process_group(group)
        self.assertIs(World.from_process_group(group), world)
        for _ in range(2):
            # What a mesh has is another handle on the same world.
            self.sherd.Mesh(World.from_process_group(group)).world.close()
            again = World.from_process_group(group)
            self.assertNotEqual(again, world)
            again.barrier()
        again.close()

    def test_process_groups_with_the_same_store_have_worlds_of_their_own(self):
        # As one has that is made after destroy_process_group().
        World = self.sherd.World
        with unittest.mock.patch("sherd.world._store_of", return_value=self.keys):
            first = World.from_process_group(dist.new_group([0, 1]))
            first.close()
            second = World.from_process_group(dist.new_group([0, 1]))
            third = World.from_process_group(dist.new_group([0, 1]))
        for world in (second, third):
            self.assertNotEqual(world, first)
            world.barrier()
        self.assertNotEqual(second, third)
        second.close()
        third.close()

    def test_a_process_group_without_this_rank_is_refused(self):
        group = dist.new_group([0])
        if ranks.rank() == 1:
            with self.assertRaisesRegex(
                    self.sherd.FailedPreconditionError, "has this rank"):
                self.sherd.World.from_process_group(group)

    def test_ranks_that_make_different_calls_are_told_both(self):
        # As after an exception in one rank, which it has caught.
        sherd, handle = self.sherd, self.sharded("auto")
        optimizer = torch.optim.AdamW(handle.parameters())
        folder = "/nowhere"  # Nothing is written or read.
        calls = {
            "handle.state_dict('full')": handle.state_dict,
            "handle.state_dict('rank0')": lambda: handle.state_dict("rank0"),
            "handle.load_state_dict()": lambda: handle.load_state_dict({}),
            "sherd.optimizer_state_dict(optimizer=AdamW, kind=full)":
                lambda: sherd.optimizer_state_dict(handle, optimizer),
            "sherd.save(step=1)": lambda: sherd.save(folder, 1, handle),
            "sherd.load(strict=True)": lambda: sherd.load(folder, handle),
            "sherd.fully_shard()": lambda: sherd.fully_shard(mlp(), handle.mesh),
            "sherd.replicate()": lambda: sherd.replicate(mlp(), handle.mesh.world)}
        full, rank0, load, optimizer_full, save, load_folder, shard, replicate = calls
        save_all, load_all = ("sherd.save(optimizer=AdamW, step=1)",
                              "sherd.load(optimizer={a: AdamW}, step=2, strict=False)")
        calls[save_all] = lambda: sherd.save(folder, 1, handle, optimizer)
        calls[load_all] = lambda: sherd.load(
            folder, handle, {"a": optimizer}, step=2, strict=False)
        for both in (
                (save, save_all), (save_all, save), (load_folder, load_all),
                (full, optimizer_full), (load, shard), (load, optimizer_full),
                (full, load), (full, rank0), (load, load_folder), (save, load_folder),
                (replicate, full)):
            with self.subTest(calls=both):
                text = re.escape(
                    f"rank 0 wants to call {both[0]}, rank 1 wants to call {both[1]};")
                with self.assertRaisesRegex(sherd.PeerMismatchError, text):
                    calls[both[ranks.rank()]]()
        handle.state_dict()  # Ranks that agree again go on.
        handle.close()

    def test_a_call_that_other_ranks_do_not_make_is_named_at_the_deadline(self):
        world = self.sherd.World.from_process_group(dist.new_group([0, 1]), deadline_s=1)
        handle = self.sherd.fully_shard(mlp(), world)
        if ranks.rank() == 0:
            with self.assertRaisesRegex(
                    self.sherd.DeadlineExceededError,
                    r"has called handle.state_dict\('full'\): call it on every rank"):
                handle.state_dict()
        dist.barrier()
        handle.close()
        with contextlib.suppress(self.sherd.Error):  # It has failed.
            world.close()

    def test_a_rank_that_has_left_a_call_halfway_is_told(self):
        from sherd import _together  # pylint: disable=import-outside-toplevel
        world = self.sherd.World.from_process_group(dist.new_group([0, 1]))

        def call(name, texts):
            with _together.same_call(world, name):
                for number in range(texts):
                    self.assertEqual(_together.gathered(world, number), [number] * 2)

        with self.assertRaisesRegex(
                self.sherd.PeerMismatchError, r"first\(\), rank 1 .* second\(\)"):
            call("first()", 2 - ranks.rank())
            call("second()", 0)
        world.close()

    def test_errors_of_operators_have_classes(self):
        handle = self.sharded("auto")
        module = handle.module
        handle.close()
        with self.assertRaisesRegex(self.sherd.FailedPreconditionError, "destroyed") as caught:
            module(torch.ones(2, 8))
        self.assertEqual(caught.exception.code, "failed_precondition")

    def test_an_infinity_of_one_rank_skips_the_step_of_all(self):
        handle = self.sharded("auto")
        before = [p.detach().clone() for p in handle.parameters()]
        optimizer = torch.optim.SGD(handle.parameters(), lr=1.0)
        with self.assertRaisesRegex(self.sherd.InvalidArgumentError, "fp16"):
            self.sherd.GradScaler(handle)
        scaler = self.sherd.GradScaler(handle, init_scale=8.0, uses_fp16=True)
        for infinite in (True, False):
            loss = handle.module(torch.ones(2, 8)).mean()
            scaler.scale(loss).backward()
            if infinite and ranks.rank() == 1:
                handle.parameters()[-1].grad.fill_(float("inf"))
            self.assertEqual(scaler.step(optimizer), not infinite)
            scaler.update()
            optimizer.zero_grad()
            self.assertEqual(scaler.get_scale(), 4.0)
            same = all(map(torch.equal, before, handle.parameters()))
            self.assertEqual(same, infinite)
        self.assertEqual(scaler.state_dict(), {"scale": 4.0, "growth_tracker": 1})
        theirs = torch.amp.GradScaler("cpu", init_scale=32.0)
        with self.assertRaisesRegex(
                self.sherd.InvalidArgumentError, "found no growth_tracker$"):
            scaler.load_state_dict({"scale": 1.0})
        self.assertEqual(scaler.state_dict(), {"scale": 4.0, "growth_tracker": 1})
        scaler.load_state_dict(theirs.state_dict())
        self.assertEqual(scaler.state_dict(), {"scale": 32.0, "growth_tracker": 0})
        with self.assertRaisesRegex(self.sherd.Error, "sherd.GradScaler"):
            theirs.scale(handle.module(torch.ones(2, 8)).mean()).backward()
            theirs.step(optimizer)
        handle.close()


if __name__ == "__main__":
    ranks.main()
