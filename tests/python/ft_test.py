# SPDX-License-Identifier: Apache-2.0
"""sherd.ft.Session: replicas that die and come back, and mistakes.

Usage: ft_test.py PACKAGE_FOLDER SHERD."""

import faulthandler
import gc
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import weakref
from pathlib import Path

import ft_rank
import torch

PACKAGE, SHERD = sys.argv[1:3]
sys.path.insert(0, PACKAGE)
import sherd  # pylint: disable=wrong-import-position
from sherd import _optimizer_state  # pylint: disable=wrong-import-position
DEADLINE_S = 500  # Busy machines import torch slowly.
HERE = Path(__file__).parent


def undisturbed(kind, steps):
    """Parameters by name after so many steps of one process."""
    model = ft_rank.make_model()
    optimizer = ft_rank.make_torch_optimizer(
        "AdamW" if kind == "sherd" else kind, model.parameters())
    for number in range(1, steps + 1):
        ft_rank.loss_of(model, 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        ft_rank.set_learning_rate(optimizer, ft_rank.learning_rate(number))
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.named_parameters())


def run(folder, ranks, kind, replicas=2, options=()):
    return subprocess.run(
        [SHERD, "run", "--fault-tolerant", "--replicas", str(replicas),
         "--ranks-per-replica", str(ranks), "--samples-per-replica", "4", *options,
         "--", sys.executable, str(HERE / "ft_rank.py"), PACKAGE, folder, kind],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=DEADLINE_S, check=False)


class Session(unittest.TestCase):
    def a_killed_replica_comes_back(self, ranks, kind):
        with tempfile.TemporaryDirectory() as folder:
            ran = run(folder, ranks, kind)
            self.assertEqual(ran.returncode, 0, ran.stdout)
            finals = [torch.load(Path(folder) / f"final-{replica}.pt")
                      for replica in range(2)]
        self.assertIn("SIGKILL", ran.stdout)
        self.assertEqual(finals[0]["name"], finals[1]["name"])
        self.assertGreaterEqual(finals[0]["step"], ft_rank.STEPS_AFTER_RETURN)
        expected = undisturbed(kind, finals[0]["step"])
        for name, value in finals[0]["values"].items():
            self.assertTrue(torch.equal(value, finals[1]["values"][name]), name)
            self.assertTrue(
                torch.allclose(value, expected[name], atol=1e-5),
                f"{name}: {(value - expected[name]).abs().max()}")

    def test_a_killed_replica_comes_back_with_adamw_of_torch(self):
        self.a_killed_replica_comes_back(1, "AdamW")

    def test_a_killed_replica_of_two_ranks_comes_back_with_adamw_of_sherd(self):
        self.a_killed_replica_comes_back(2, "sherd")

    def test_what_update_raises_comes_out_of_the_loop(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = run(folder, 1, "raises", replicas=1)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertIn("raised: no step 3", ran.stdout)
        self.assertIn("after an exception in the update to step 3", ran.stdout)

    def test_buffers_that_are_assigned_and_a_scaler_are_part_of_the_state(self):
        with tempfile.TemporaryDirectory() as folder:
            for begins in ("count 0, scale 8.0", "count 10, scale 64.0"):
                ran = run(folder, 1, "more state", replicas=1,
                          options=["--run-dir", folder])
                self.assertEqual(ran.returncode, 0, ran.stdout)
                self.assertIn(begins, ran.stdout)
                # And of checkpoints, which have no buffer that is not persistent.
                self.assertRegex(ran.stdout, r"loaded step 10, count 10|step 20, count 20")

    def test_a_run_that_has_ended_continues_from_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            for begin in (1, 11):
                ran = run(folder, 1, "saves", replicas=1,
                          options=["--run-dir", folder])
                self.assertEqual(ran.returncode, 0, ran.stdout)
                self.assertIn(f"steps {begin} to {begin + 9}\n", ran.stdout)
                self.assertIn(f"of the optimizer: {{{begin + 9}.0}}", ran.stdout)


class Groups(unittest.TestCase):
    def test_an_update_that_adds_parameter_groups_is_an_error(self):
        first, second = (torch.zeros(2, requires_grad=True) for _ in range(2))
        sgd = torch.optim.SGD([first], lr=0.1)
        checked = sherd.ft._same_groups(  # pylint: disable=protected-access
            lambda number: number < 2 or sgd.add_param_group({"params": [second]}),
            {"sgd": sgd})
        checked(1)
        with self.assertRaisesRegex(
                sherd.InvalidArgumentError, r"\{'sgd': \[1\]\} parameters, found .*1, 1"):
            checked(2)

    def test_a_buffer_of_another_shape_is_an_error(self):
        module = torch.nn.BatchNorm1d(3)
        buffers = sherd.ft._Buffers(module)  # pylint: disable=protected-access
        module.running_mean = torch.zeros(4)
        with self.assertRaisesRegex(
                sherd.InvalidArgumentError, "buffer running_mean to stay of shape"):
            buffers.adopt()


class Mistakes(unittest.TestCase):
    def setUp(self):
        self.handle = sherd.fully_shard(torch.nn.Linear(3, 2), sherd.World.single())
        self.addCleanup(self.handle.close)
        self.adamw = sherd.AdamW(self.handle)
        where = {"SHERD_COORDINATOR": "127.0.0.1:1", "SHERD_REPLICA": "0"}
        patch = unittest.mock.patch.dict(os.environ, where)
        patch.start()
        self.addCleanup(patch.stop)

    def refused(self, what, optimizer=None, **options):
        with self.assertRaisesRegex(sherd.Error, what):
            sherd.ft.Session(self.handle, optimizer or self.adamw, **options)

    def test_a_process_without_a_launcher(self):
        del os.environ["SHERD_COORDINATOR"]
        self.refused("SHERD_COORDINATOR.*sherd run --fault-tolerant")

    def test_options(self):
        self.refused("option of sherd::ft::SessionOptions, found colour", colour=3)
        self.refused("expected one of give, leave_out, stop, found 'maybe'",
                     non_finite_gradients="maybe")
        self.refused("found -1", sums_bytes_max=-1)
        self.refused("seconds by name, of connect, fetch, .*found {'lunch': 1}",
                     timeouts={"lunch": 1})
        self.refused("leave: expected .*float, found 'soon'", timeouts={"leave": "soon"})
        self.refused("a secret or certificates, found both",
                     secret_file="secret", tls_key="key")
        self.refused('certificate "one", key "two", authority ""',
                     tls_certificate="one", tls_key="two")
        self.refused('key "", authority "three"', tls_authority="three")

    def test_optimizers_whose_state_is_not_known(self):
        mine = self.handle.parameters()
        self.refused("found LBFGS", torch.optim.LBFGS(mine))
        self.refused("found SGD with .*'dampening': 0.5",
                     torch.optim.SGD(mine, momentum=0.9, dampening=0.5))
        self.refused("found NAdam", torch.optim.NAdam(mine))
        self.refused(r"of shape \(4,\) that is none of them",
                     torch.optim.AdamW([torch.nn.Parameter(torch.ones(4))]))
        with self.assertRaisesRegex(sherd.Error, "expected an optimizer, found none"):
            sherd.ft.Session(self.handle, {})

    def test_the_state_of_an_optimizer_is_there_before_its_first_step(self):
        for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop,
                     torch.optim.Adagrad, torch.optim.Adamax, torch.optim.Adadelta,
                     lambda p: torch.optim.Adam(p, amsgrad=True),
                     lambda p: torch.optim.SGD(p, momentum=0.9),
                     lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True)):
            ours = torch.nn.Parameter(torch.ones(3))
            theirs = torch.nn.Parameter(torch.ones(3))
            optimizer, plain = make([ours]), make([theirs])
            read = _optimizer_state.reader_of(optimizer, [("w", ours)])
            self.assertTrue(read())
            for step in range(3):
                for parameter in (ours, theirs):
                    parameter.grad = torch.tensor([1.0, -2.0, 0.5]) * (step + 1)
                optimizer.step()
                plain.step()
            self.assertTrue(torch.equal(ours, theirs), optimizer)
            self.assertEqual({key for _, key, _ in read()}, set(plain.state[theirs]))
            for name, key, tensor in read():
                self.assertEqual(name, "w")
                self.assertTrue(torch.equal(tensor, plain.state[theirs][key]), key)

    def test_a_rank_may_have_no_slice_of_a_group(self):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW(
            [{"params": [weight]}, {"params": [], "weight_decay": 0.0}])
        read = _optimizer_state.reader_of(optimizer, [("w", weight)])
        self.assertEqual({key for _, key, _ in read()}, {"step", "exp_avg", "exp_avg_sq"})


    def test_timeouts_are_seconds_by_name(self):
        session = sherd.ft.Session(self.handle, self.adamw, timeouts={"fetch": 2.5})
        self.addCleanup(session.close)
        self.assertEqual(session.options.timeouts.fetch, 2.5)
        self.assertEqual(session.options.timeouts.leave, 10.0)

    def test_a_closed_session_is_freed_although_its_update_refers_to_it(self):
        for optimizer in (self.adamw, torch.optim.AdamW(self.handle.parameters())):
            def update(_number):
                pass

            session = sherd.ft.Session(self.handle, optimizer, update=update)
            update.session = session
            session.close()
            freed = weakref.ref(session)
            del session, update
            gc.collect()
            self.assertIsNone(freed())


class Signals(unittest.TestCase):
    """Handlers run while a session waits, which may be for hours."""

    def setUp(self):
        patch = unittest.mock.patch.dict(
            os.environ, {"SHERD_COORDINATOR": "127.0.0.1:1", "SHERD_REPLICA": "0"})
        patch.start()
        self.addCleanup(patch.stop)
        # What ends a wait that hears nothing.
        faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
        self.addCleanup(faulthandler.cancel_dump_traceback_later)

    def at_a_signal(self, handler):
        """Lets the handler run every 0.2 s."""
        before = signal.signal(signal.SIGALRM, handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)

    def session(self):
        """A session without a coordinator: begin_step() waits for it."""
        handle = sherd.fully_shard(torch.nn.Linear(3, 2), sherd.World.single())
        self.addCleanup(handle.close)
        session = sherd.ft.Session(handle, sherd.AdamW(handle))
        self.addCleanup(session.close)
        return session

    def test_a_handler_may_call_leave(self):
        session = self.session()
        self.at_a_signal(lambda *_: session.leave())
        self.assertIsNone(session.begin_step())

    def test_what_a_handler_raises_ends_the_wait(self):
        session = self.session()

        def stop(*_):
            raise KeyboardInterrupt

        self.at_a_signal(stop)
        with self.assertRaises(KeyboardInterrupt):
            session.begin_step()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def test_a_spare_hears_signals_and_goes_on_waiting(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, reader)
        self.addCleanup(os.close, writer)
        os.environ["SHERD_SPARE"] = str(reader)
        heard = []

        def count(*_):
            heard.append(1)
            if len(heard) == 2:  # The first has not ended the wait.
                os.write(writer, b"2\n")

        self.at_a_signal(count)
        world = sherd.World.single()
        handle = sherd.fully_shard(torch.nn.Linear(3, 2), world)
        self.addCleanup(handle.close)
        session = sherd.ft.Session(handle, sherd.AdamW(handle))
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.addCleanup(session.close)
        self.assertEqual(session.options.replica, 2)
        session.leave()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
