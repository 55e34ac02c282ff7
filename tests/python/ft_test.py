# SPDX-License-Identifier: Apache-2.0
"""sherd.ft.Session: replicas that die and come back, and mistakes.

Usage: ft_test.py PACKAGE_FOLDER SHERD."""

import faulthandler
import gc
import os
import re
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
from children import error_of, in_child

PACKAGE, SHERD = sys.argv[1:3]
sys.path.insert(0, PACKAGE)
import sherd  # pylint: disable=wrong-import-position
from sherd import (  # pylint: disable=wrong-import-position
    _core, _optimizer_state, _session_checks, checkpoints)
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
            self.assertTrue(torch.equal(*(final["averages"][name] for final in finals)), name)
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
        before = None
        with tempfile.TemporaryDirectory() as folder:
            for begin in (1, 11):
                ran = run(folder, 1, "saves", replicas=1,
                          options=["--run-dir", folder])
                self.assertEqual(ran.returncode, 0, ran.stdout)
                self.assertIn(f"steps {begin} to {begin + 9}\n", ran.stdout)
                self.assertIn(f"of the optimizer: {{{begin + 9}.0}}", ran.stdout)
                averages = re.findall(r"average at (?:first|last): (\S+)", ran.stdout)
                self.assertNotEqual(*averages)
                self.assertIn(before, (None, averages[0]))
                before = averages[1]

    def test_what_was_interrupted_can_be_called_again(self):
        with tempfile.TemporaryDirectory() as folder:
            ran = run(folder, 1, "interrupted", replicas=1)
        self.assertEqual(ran.returncode, 0, ran.stdout)
        self.assertEqual(ran.stdout.count("not begun: "), 2, ran.stdout)
        self.assertRegex(ran.stdout, "not begun: .*checkpoints")
        self.assertIn("begins again with step 1\n", ran.stdout)
        self.assertIn("inside an update: [ft] found close()", ran.stdout)
        self.assertRegex(ran.stdout, "not closed: .*checkpoints")
        self.assertIn("saved step 5\n", ran.stdout)


class Refusals(unittest.TestCase):
    """How a process ends that the coordinator does not let in."""

    def status_after(self, body):
        """Of a program in which begin_step() raises so, and the session's `update`."""
        program = f"""if True:
            import os, sys, unittest.mock
            sys.path.insert(0, {PACKAGE!r})
            os.environ.update(SHERD_COORDINATOR="127.0.0.1:1", SHERD_REPLICA="0")
            import torch, sherd
            handle = sherd.fully_shard(torch.nn.Linear(3, 2), sherd.World.single())
            refused = sherd.InvalidArgumentError("[ft] another configuration")
            def update(number):
                raise refused
            with unittest.mock.patch.object(sherd._core, "Session") as core:
                session = sherd.ft.Session(handle, sherd.AdamW(handle), update=update)
            def begin():
                {body}
            session._core.begin_step = begin
            session.begin_step()
            """
        ran = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True,
                             timeout=DEADLINE_S, check=False)
        self.assertIn("Traceback", ran.stderr)
        self.assertRegex(ran.stderr, r"InvalidArgumentError: \[ft\] another configuration\n$")
        return ran.returncode

    def test_a_replica_that_is_refused_for_good_ends_with_2(self):
        self.assertEqual(self.status_after("raise refused"), 2)

    def test_what_an_update_raises_ends_with_1(self):
        self.assertEqual(self.status_after("core.call_args.args[4](1)"), 1)


class Groups(unittest.TestCase):
    def test_an_update_that_adds_parameter_groups_is_an_error(self):
        first, second = (torch.zeros(2, requires_grad=True) for _ in range(2))
        sgd = torch.optim.SGD([first], lr=0.1)
        # pylint: disable=protected-access
        checked = sherd.ft._checked(
            lambda number: number < 2 or sgd.add_param_group({"params": [second]}),
            {"sgd": sgd}, sherd.ft._Buffers(torch.nn.Module()))
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


class State(unittest.TestCase):
    """What a session saves, and what it calls to make a step."""

    def setUp(self):
        patch = unittest.mock.patch.dict(
            os.environ, {"SHERD_COORDINATOR": "127.0.0.1:1", "SHERD_REPLICA": "0"})
        patch.start()
        self.addCleanup(patch.stop)

    def handle(self, module, make=sherd.fully_shard, **options):
        handle = make(module, sherd.World.single(), **options)
        self.addCleanup(handle.close)
        return handle

    def update_of(self, *arguments, **options):
        """What a session calls with the number of a step, and the session."""
        with unittest.mock.patch.object(_core, "Session") as core:
            session = sherd.ft.Session(*arguments, **options)
        self.addCleanup(session.close)
        return core.call_args.args[4], session

    def test_checkpoints_have_the_parameters_that_the_handle_leaves_alone(self):
        def model():
            result = torch.nn.Sequential(
                torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
            result.none = torch.nn.Parameter(torch.empty(0, 3))
            return result

        frozen = model()
        frozen[0].weight.requires_grad = False
        for handle in (self.handle(frozen, sherd.replicate),
                       self.handle(model(), ignored=["2"])):
            fetched, saved = sherd.ft._states_of(  # pylint: disable=protected-access
                handle, {"optimizer": sherd.AdamW(handle)}, None, None, {}, sherd.ft._Calls())
            expected = checkpoints._state_of(  # pylint: disable=protected-access
                handle, sherd.AdamW(handle), None, None, {})
            world = handle.mesh.world
            expected, *found = (_core.gather_full_state(world, state)
                                for state in (expected, fetched, saved))
            names = [*handle.module.named_parameters(), *handle.module.named_buffers()]
            self.assertEqual(set(expected["model"]), {name for name, _ in names})
            for state in found:
                self.assertEqual(set(state), set(expected))
                self.assertEqual(set(state["model"]), set(expected["model"]))
                for name, tensor in expected["model"].items():
                    self.assertTrue(torch.equal(state["model"][name], tensor), name)

    def test_a_step_goes_through_the_scaler(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        sgd = torch.optim.SGD(handle.parameters(), lr=1.0)
        scaler = sherd.GradScaler(handle, init_scale=8.0, uses_fp16=True)
        update, _ = self.update_of(handle, sgd, scaler=scaler)
        for factor, scale in ((1.0, 8.0), (float("inf"), 4.0)):
            before = [part.detach().clone() for part in handle.parameters()]
            sgd.zero_grad()
            scaler.scale(factor * handle.module(torch.ones(1, 3)).sum()).backward()
            update(1)
            moved = 1.0 if factor == 1.0 else 0.0
            for part, value in zip(handle.parameters(), before):
                self.assertTrue(torch.equal(part, value - moved), part)
            self.assertEqual(scaler.get_scale(), scale)

    def test_with_a_scaler_gradients_that_overflow_are_given_unless_one_says_otherwise(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        adamw = sherd.AdamW(handle)
        scaler = sherd.GradScaler(handle, uses_fp16=True)
        policy = _core.GradientPolicy
        for options, expected in (({}, policy.leave_out),
                                  ({"scaler": scaler}, policy.give),
                                  ({"scaler": scaler, "non_finite_gradients": "stop"},
                                   policy.stop)):
            _, session = self.update_of(handle, adamw, **options)
            self.assertEqual(session.options.non_finite_gradients, expected)
            session.close()

    def test_only_the_session_makes_steps(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        for optimizer in (torch.optim.AdamW(handle.parameters()), sherd.AdamW(handle)):
            update, session = self.update_of(handle, optimizer)
            session._core.begin_step.return_value = None  # pylint: disable=protected-access
            optimizer.step()
            session.begin_step()
            with self.assertRaisesRegex(
                    sherd.FailedPreconditionError, r"AdamW: expected step\(\) in the update of"):
                optimizer.step()
            if isinstance(optimizer, torch.optim.Optimizer):  # Trials are none.
                self.assertTrue(_optimizer_state.first_state(
                    optimizer, 0, handle.parameters()[0]))
            update(1)
            with self.assertRaisesRegex(sherd.FailedPreconditionError, "leave it out of the loop"):
                optimizer.step()
            session.close()
            optimizer.step()

    def test_a_session_that_is_freed_changes_nothing_more(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        adamw = sherd.AdamW(handle)
        with unittest.mock.patch.object(_core, "Session"):
            session = sherd.ft.Session(handle, adamw)
        session._core.begin_step.return_value = None  # pylint: disable=protected-access
        session.begin_step()
        del session
        adamw.step()
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)

    def test_a_process_has_one_session(self):
        os.environ["SHERD_REPLICA"] = "5"  # No other test has it.
        handle = self.handle(torch.nn.Linear(3, 2))
        adamw = sherd.AdamW(handle)
        _, session = self.update_of(handle, adamw)

        def refused():
            with self.assertRaisesRegex(
                    sherd.FailedPreconditionError, "one session in a process, found another of "
                    "replica 5 at 127.0.0.1:1; .*ModuleDict.*dictionary"):
                sherd.ft.Session(handle, adamw)

        refused()  # While the other is open.
        session.close()
        _, session = self.update_of(handle, adamw)  # As the first had no step.
        session.begin_step()
        session.close()
        refused()
        os.environ["SHERD_REPLICA"] = "6"
        self.update_of(handle, adamw)

    def test_tensors_differ_between_ranks(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        adamw = sherd.AdamW(handle)

        def refused(what, mine, other):
            # pylint: disable-next=protected-access
            described = {key: _session_checks._described(other[key]) for key in other}
            with unittest.mock.patch.object(
                    _session_checks, "gathered", lambda _, value: [value, value, described]):
                with self.assertRaisesRegex(sherd.InvalidArgumentError, what):
                    sherd.ft.Session(handle, adamw, tensors=mine)

        ones = torch.ones(2, 3).t()
        imaginary = torch.tensor(1j).conj()
        refused("whole and equal on every rank of the replica, found for 'a' one of shape "
                r"\(3, 2\) and torch.float32 on rank 0 and other values on rank 2",
                {"a": ones}, {"a": torch.ones(3, 2).neg()})
        refused(r"'a' .*rank 0 and one of shape \(2, 3\) and torch.float32 on rank 2",
                {"a": ones}, {"a": ones.t()})
        refused(r"'a' .*rank 0 and one of shape \(\) and torch.bool", {"a": torch.tensor(1)},
                {"a": torch.tensor(True)})
        refused("'a' .*rank 0 and other values", {"a": imaginary}, {"a": torch.tensor(1j)})
        refused(r"'b' none on rank 0 and one of shape \(0,\)", {}, {"b": torch.ones(0)})

    def test_a_buffer_that_update_assigns_is_in_the_state_at_once(self):
        module = torch.nn.Linear(3, 2)
        module.register_buffer("average", torch.zeros(2))
        handle, kept = self.handle(module), module.average

        def assign(number):
            module.average = module.average + number

        update, _ = self.update_of(handle, sherd.AdamW(handle), update=assign)
        update(3)
        self.assertIs(module.average, kept)
        self.assertEqual(kept.tolist(), [3.0, 3.0])

    def test_a_close_that_raised_can_be_repeated(self):
        module = torch.nn.BatchNorm1d(3)
        handle, kept = self.handle(module), module.running_mean
        session = sherd.ft.Session(handle, sherd.AdamW(handle))
        module.running_mean = torch.zeros(4)
        with self.assertRaisesRegex(sherd.Error, "running_mean to stay of shape"):
            session.close()
        module.running_mean = kept
        session.leave()
        session.close()
        with self.assertRaisesRegex(sherd.FailedPreconditionError, r"after close\(\)"):
            session.begin_step()
        session.close()

    def test_a_forked_child_is_told(self):
        handle = self.handle(torch.nn.Linear(3, 2))
        session = sherd.ft.Session(handle, sherd.AdamW(handle))
        self.addCleanup(session.close)
        acts = [session.begin_step, session.last_backward, session.finish_step,
                session.leave, session.close, lambda: session.step]

        def child():
            nonlocal session
            said = "\n".join(map(error_of, acts))
            acts.clear()
            session = None
            gc.collect()  # Waits for no thread of the parent.
            return said

        text, code = in_child(child)
        self.assertEqual(code, 0)
        self.assertEqual(len(text.splitlines()), len(acts))
        for line in text.splitlines():
            self.assertRegex(line, "^FailedPreconditionError: .*forked")
        session.leave()
        self.assertIsNone(session.begin_step())  # The parent goes on.


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
        self.refused("leave: expected .*[Ff]loat, found 'soon'", timeouts={"leave": "soon"})
        for seconds in (float("nan"), float("inf"), 1e300, -1, 0):
            self.refused("'leave'.: expected seconds above 0 and at most 1000000, found "
                         f"{re.escape(str(seconds))}", timeouts={"leave": seconds})
        self.refused("digest_every: expected 0 or more steps, found -1", digest_every=-1)
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
        self.refused(r"of shape \(4,\) that is none of them",
                     torch.optim.AdamW([torch.nn.Parameter(torch.ones(4))]))

    def test_state_of_another_shape_than_the_parameter(self):
        handle = sherd.replicate(torch.nn.Linear(3, 2), sherd.World.single())
        self.addCleanup(handle.close)
        whole = list(handle.module.parameters())
        adafactor = torch.optim.Adafactor(whole)
        trained = torch.optim.Adafactor(whole)
        for parameter in whole:
            parameter.grad = torch.ones_like(parameter)
        trained.step()
        for optimizer in (adafactor, trained):
            with self.assertRaisesRegex(sherd.Error, "of the shape of the parameter.*Adafactor"):
                sherd.ft.Session(handle, optimizer)
        _optimizer_state.reader_of(torch.optim.Muon(whole[:1]), [("w", whole[0])])

    def test_optimizers(self):
        for optimizer, what in (
                ({}, "expected an optimizer, found none"),
                (None, "optimizer: expected one of sherd .*found None"),
                ([self.adamw], "optimizer: expected one of sherd .*found a list"),
                ({1: self.adamw}, "names that are texts, found 1"),
                ({"a": self.adamw, "b": self.adamw}, "once, found .* the names 'a' and 'b'")):
            with self.assertRaisesRegex(sherd.InvalidArgumentError, what):
                sherd.ft.Session(self.handle, optimizer)

    def test_arguments(self):
        self.refused("update: expected a function .*, found a int", update=3)
        self.refused("scaler: expected a sherd.GradScaler, found a float", scaler=2.0)
        self.refused("average: expected a sherd.WeightAverage, found a AdamW", average=self.adamw)
        self.refused("dictionary of tensors by name, found a list", tensors=[torch.ones(2)])
        self.refused("tensors by name, found a float under 'a'", tensors={"a": 1.0})
        self.refused("tensors by name, found a Tensor under 1", tensors={1: torch.ones(2)})
        self.refused("checkpoints: expected a folder, as save_every is 5, found None",
                     save_every=5)
        self.refused("save_every: expected a number, 0 or more, found -1",
                     checkpoints="folder", save_every=-1)
        self.refused("keep_last: expected a number, 0 or more, found 'all'",
                     checkpoints="folder", keep_last="all")

    def test_the_state_of_an_optimizer_is_there_before_its_first_step(self):
        for make in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop,
                     torch.optim.Adagrad, torch.optim.Adamax, torch.optim.Adadelta,
                     torch.optim.NAdam, torch.optim.ASGD, torch.optim.RAdam,
                     torch.optim.Rprop,
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

    def test_a_replica_that_is_told_to_end_leaves(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            session = self.session()
            self.assertIsNot(signal.getsignal(number), signal.SIG_DFL)

            def at_a_time(*_, number=number):
                signal.raise_signal(number)

            self.at_a_signal(at_a_time)  # Also more than once.
            self.assertIsNone(session.begin_step())
            session.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.assertIs(signal.getsignal(number), signal.SIG_DFL)

    def test_a_forked_child_does_not_leave_but_ends(self):
        session = self.session()
        _, code = in_child(lambda: signal.raise_signal(signal.SIGTERM))
        self.assertEqual(code, -signal.SIGTERM)
        session.leave()

    def test_handlers_of_the_program_stay(self):
        own = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGUSR1, own)
        session = self.session()
        self.assertIs(signal.getsignal(signal.SIGUSR1), signal.SIG_IGN)
        session.leave()
        with self.assertRaisesRegex(ValueError, "no data"), session:
            raise ValueError("no data")
        self.assertIs(signal.getsignal(signal.SIGTERM), signal.SIG_DFL)
        self.assertIs(signal.getsignal(signal.SIGUSR1), signal.SIG_IGN)

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
