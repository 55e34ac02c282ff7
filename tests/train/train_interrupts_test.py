#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` that is interrupted or killed, and replicas of it."""

import contextlib
import os
import pathlib
import signal

from train_testing import SMALL, TIMEOUT_S, TrainTest, main


class TrainInterrupts(TrainTest):
    def test_the_first_interrupt_saves_and_ends(self):
        for number in (signal.SIGINT, signal.SIGHUP):
            run = number.name
            process = self.start("--data", "text", "--run", run, "--steps", "1000000")
            self.wait_for(process, "step 1/")
            process.send_signal(number)
            self.wait_for(process, f"ended  by {run}, saved {run}/checkpoints/step-")
            self.assertEqual(process.wait(TIMEOUT_S), 128 + number)
            steps = len(self.losses(run))
            self.assertTrue((self.folder / f"{run}/checkpoints/step-{steps}").is_dir())

    def test_an_interrupt_that_the_launcher_passes_on_as_well_is_one(self):
        words = ("--data", "text", "--run", "x", "--steps", "1000000")
        process = self.start(*words, launcher=("-n", "2"))
        self.wait_for(process, "step 1/")
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        ranks = [int(pid) for pid in pathlib.Path(children).read_text().split()]
        self.assertEqual(len(ranks), 2)
        process.send_signal(signal.SIGINT)
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):  # It has saved and ended.
                os.kill(pid, signal.SIGINT)
        self.wait_for(process, "ended  by SIGINT, saved x/checkpoints/step-")
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGINT)

    def test_a_run_that_was_killed_before_it_saved_begins_again(self):
        words = ("--data", "text", "--run", "x", "--steps", "1000000")
        process = self.start(*words, "--save-every", "500000")
        self.wait_for(process, "step 1/")
        process.kill()
        process.wait(TIMEOUT_S)
        text = self.shown(*SMALL, *words, "--seed", "1", expected=2)
        self.assertIn("found metrics.jsonl of another run", text)
        # Its data are named by another path, and it has other ranks.
        again = self.start("--config", "x/config.json", launcher=("-n", "2"))
        self.wait_for(again, "begins again; its metrics so far are in x/metrics.jsonl.1")
        self.wait_for(again, "step 1/")
        os.killpg(again.pid, signal.SIGINT)
        self.wait_for(again, "ended  by SIGINT, saved x/checkpoints/step-")
        self.assertEqual(again.wait(TIMEOUT_S), 128 + signal.SIGINT)
        steps = [step for (step,) in self.metrics("x", ["step"])]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_run_with_other_weights_begins_again_with_them(self):
        self.shown(*SMALL, "--data", "text", "--run", "base", "--steps", "30", "--lr", "1e-2")
        words = ("--init-from", "base/", "--data", "text", "--run", "x", "--steps", "1000000")
        process = self.start(*words, "--save-every", "500000")
        self.wait_for(process, "step 1/")
        process.kill()
        process.wait(TIMEOUT_S)
        first = self.losses("x")[0]
        again = ("--config", "x/config.json", "--stop-at", "1")
        self.assertIn("begins again", self.shown(*again))
        self.assertEqual(self.losses("x"), [first])
        self.shown(*again, "--run", "y")
        self.assertEqual(self.losses("y"), [first])

    def test_an_imported_model_whose_run_was_killed_begins_again(self):
        self.shown(*SMALL, "--data", "text", "--run", "first", "--steps", "1")
        for words in (("export", "first", "model"), ("import", "model", "x")):
            self.shown(*words, command="checkpoint")
        words = ("--config", "x/config.json", "--data", "text", "--steps", "1000000")
        process = self.start(*words, "--save-every", "500000")
        self.wait_for(process, "step 1/")
        process.kill()
        process.wait(TIMEOUT_S)
        text = self.shown(*SMALL, *words, "--seed", "1", expected=2)
        self.assertIn("found metrics.jsonl of another run", text)
        again = self.start(*words)
        self.wait_for(again, "begins again; its metrics so far are in x/metrics.jsonl.1")
        again.kill()
        again.wait(TIMEOUT_S)

    def test_a_signal_in_the_last_step_ends_a_complete_run(self):
        process = self.start(
            "--data", "text", "--run", "x", "--steps", "1", "--batch", "8192"
        )
        self.wait_for(process, "run    x")
        process.send_signal(signal.SIGTERM)
        self.wait_for(process, "done ")
        self.assertEqual(process.wait(TIMEOUT_S), 0)

    def test_the_second_interrupt_ends_at_once(self):
        # The validation after the first step takes minutes.
        process = self.start(
            "--run", "x", "--batch", "1", "--eval-every", "1", "--eval-batches", "1000000"
        )
        self.wait_for(process, "run    x")
        process.send_signal(signal.SIGINT)
        self.wait_for(process, "Ctrl-C again ends it at once")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(TIMEOUT_S), -signal.SIGINT)
        self.assertEqual(list((self.folder / "x/checkpoints").glob("step-*")), [])

    def test_an_interrupt_of_the_whole_job_saves_and_ends(self):
        process = self.start(
            "--data", "text", "--run", "x", "--steps", "1000000", launcher=("-n", "2")
        )
        self.wait_for(process, "step 1/")
        os.killpg(process.pid, signal.SIGINT)  # As a terminal does.
        self.wait_for(process, "ended  by SIGINT, saved x/checkpoints/step-")
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGINT)

    def test_an_interrupt_of_replicas_saves_and_ends(self):
        process = self.start(
            "--data", "text", "--run", "x", "--steps", "1000000",
            launcher=("--fault-tolerant", "--replicas", "2", "--samples-per-replica", "6"),
        )  # fmt: skip
        self.wait_for(process, "step 1/")
        os.killpg(process.pid, signal.SIGINT)
        self.wait_for(process, "saved  in x/checkpoints")
        process.stdout.read()  # Until the launcher ends.
        self.assertEqual(process.wait(TIMEOUT_S), 128 + signal.SIGINT)
        self.assertNotEqual(list((self.folder / "x/checkpoints").glob("step-*")), [])

    def test_replicas_need_the_folder_of_their_run_even_if_they_save_nothing(self):
        process = self.start(
            "--data", "text", "--steps", "2", "--save-every", "0",
            launcher=("--fault-tolerant", "--replicas", "2", "--samples-per-replica", "6"),
        )  # fmt: skip
        text = process.stdout.read()
        self.assertIn("--run: expected the folder of the run, which replicas share", text)
        self.assertEqual(process.wait(TIMEOUT_S), 2)
        self.assertFalse((self.folder / "runs").exists())

    def test_a_batch_that_contradicts_the_launcher_is_refused(self):
        process = self.start(
            "--data", "text", "--batch", "12",
            launcher=("--fault-tolerant", "--replicas", "2", "--samples-per-replica", "6"),
        )  # fmt: skip
        text = process.stdout.read()
        self.assertIn("--batch: expected none, since replicas have the samples", text)
        self.assertIn("gives them, or 6, found 12", text)
        self.assertEqual(process.wait(TIMEOUT_S), 2)


if __name__ == "__main__":
    main()
