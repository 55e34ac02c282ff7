#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` as a user calls it: where it saves, goes on and ends."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from train_testing import SMALL, TIMEOUT_S, TrainTest, change_tensor, main


class TrainCommand(TrainTest):
    # ---- what a run leaves, and how it goes on

    def test_a_run_without_options_keeps_its_model(self):
        text = self.shown(*SMALL, "--data", "text", "--run", "x", "--steps", "2")
        self.assertIn("saved  x/checkpoints/step-2", text)
        self.assertTrue((self.folder / "x/checkpoints/step-2").is_dir())
        self.assertIn("sherd train --config x/config.json --steps 4", text)

    def test_a_run_that_shall_not_save_says_so(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--save-every", "0")
        self.assertIn("saved  nothing", self.shown(*words, "--steps", "2"))
        self.assertFalse((self.folder / "x/checkpoints").exists())

    def test_a_run_goes_on_from_another_folder_and_when_it_was_moved(self):
        self.shown(*SMALL, "--data", "text", "--run", "runs/x", "--steps", "2")
        self.shown("--config", self.folder / "runs/x/config.json", "--steps", "3", cwd="/")
        self.assertEqual(len(self.losses("runs/x")), 3)
        (self.folder / "runs/x").rename(self.folder / "moved")
        text = self.shown("--config", "moved/config.json", "--steps", "4")
        self.assertIn("resumes after step 3", text)
        self.shown("--config", "config.json", "--steps", "5", cwd=self.folder / "moved")
        self.assertEqual(len(self.losses("moved")), 5)
        self.assertTrue((self.folder / "moved/checkpoints/step-5").is_dir())

    def test_checkpoints_beside_a_config_that_are_not_used_are_named(self):
        self.shown(*SMALL, "--data", "text", "--run", "x", "--steps", "2")
        words = ("--config", "x/config.json", "--steps", "3")
        text = self.shown(*words, "--run", "y")
        self.assertIn("x/checkpoints/step-2 is not used", text)
        self.assertIn("--run x goes on", text)
        self.assertNotIn("is not used", self.shown(*words, "--run", "x"))

    def test_a_run_goes_on_without_the_flag(self):
        words = (*SMALL, "--data", "text", "--run", "x")
        # More checkpoints than an int can count.
        self.shown(*words, "--save-every", "1", "--steps", "2", "--keep", 2**32 + 1)
        self.assertTrue((self.folder / "x/checkpoints/step-1").is_dir())
        text = self.shown(*words, "--save-every", "0", "--steps", "3")
        self.assertIn("resumes after step 2", text)

    def test_a_flag_set_to_false_wins_over_the_file(self):
        self.shown(*SMALL, "--data", "text", "--run", "x", "--steps", "1", "--quiet")
        words = ("--config", "x/config.json", "--steps", "2")
        text = self.shown(*words, "--quiet=false")
        self.assertIn("resumes after step 1", text)
        self.assertFalse(json.loads((self.folder / "x/config.json").read_text())["quiet"])

    def test_a_value_of_a_flag_that_is_none_is_refused_by_name(self):
        for value in ("maybe", "x"):
            text = self.shown(*SMALL, f"--quiet={value}", expected=2)
            self.assertIn(f"--quiet: expected true or false, found '{value}'", text)

    def test_the_last_of_an_option_that_is_given_twice_counts(self):
        words = (*SMALL, "--data", "text", "--run", "y", "--steps", "9", "--quiet=false")
        self.assertEqual(self.shown(*words, "--run", "x", "--steps", "2", "--quiet"), "")
        self.assertEqual(len(self.losses("x")), 2)

    def test_a_path_that_is_no_utf8_is_refused_before_anything_is_loaded(self):
        text = self.shown(*SMALL, "--data", "no-such-\udcff", "--run", "x", expected=2)
        self.assertIn("--data: expected a text in UTF-8, found", text)

    def test_a_profile_is_taken_once_and_also_of_a_run_that_is_ended(self):
        process = self.start(
            "--data", "text", "--run", "x", "--steps", "1000000",
            "--profile", "profile", "--profile-steps", "1000000",
            launcher=("-n", "2"),
        )  # fmt: skip
        self.wait_for(process, "step 1/")
        config = json.loads((self.folder / "x/config.json").read_text())
        self.assertEqual(config["profile"], "")
        deadline = time.monotonic() + TIMEOUT_S
        while len(self.losses("x")) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        self.wait_for(process, "ended  by SIGINT")
        process.wait(TIMEOUT_S)
        self.assertTrue((self.folder / "profile/rank-1.json").is_file())

    def test_a_run_that_has_taken_its_steps_says_so(self):
        words = (*SMALL, "--data", "text", "--run", "x")
        self.shown(*words, "--steps", "2")
        text = self.shown(*words, "--steps", "2")
        self.assertIn("x is at step 2 of 2; give --steps larger than 2", text)
        self.assertEqual(len(self.losses("x")), 2)

    def test_another_optimizer_than_the_checkpoints_is_refused(self):
        words = (*SMALL, "--data", "text", "--run", "x")
        self.shown(*words, "--steps", "1")
        text = self.shown(*words, "--steps", "2", "--optimizer", "muon", expected=2)
        self.assertIn("--optimizer: expected adamw, whose state is in", text)
        self.assertIn("x/checkpoints/step-1, found muon", text)

    def test_another_model_than_the_checkpoints_is_refused(self):
        words = (*SMALL, "--data", "text", "--model", "llama", "--run", "x")
        theta = ("--rope-theta", "100")
        few = ("--kv-heads", "1")
        self.shown(*words, *theta, *few, "--steps", "1")
        for more, refusal in (
            (few, "--rope-theta: expected 100.0, as in the model of x/checkpoints/step-1, found"),
            (theta, "--kv-heads: expected 1, as in"),
            ((*theta, *few, "--head-width", "8"), "--head-width: expected 0, as in"),
        ):
            self.assertIn(refusal, self.shown(*words, "--steps", "2", *more, expected=2))
        self.shown("--config", "x/config.json", "--steps", "2", ranks=2)
        replicas = ("--fault-tolerant", "--replicas", "1", "--samples-per-replica", "6")
        words = ("--data", "text", "--model", "llama", "--run", "y")
        for steps, theta, status in ((1, 100, 0), (2, 200, 2)):
            more = ("--steps", steps, "--rope-theta", theta)
            process = self.start(*words, *more, launcher=replicas)
            text = process.stdout.read()
            self.assertEqual(process.wait(TIMEOUT_S), status, text)
        self.assertIn(
            "--rope-theta: expected 100.0, as in the model of y/checkpoints/step-1", text
        )

    def test_hashes_are_hexadecimal_everywhere(self):
        words = (*SMALL, "--data", "text", "--run", "x")
        self.shown(*words, "--steps", "1")
        about = json.loads((self.folder / "x/config.json").read_text())["about"]
        content = subprocess.run(
            [self.sherd, "checkpoint", "inspect", "--json", self.folder / "x"],
            capture_output=True,
            check=True,
        ).stdout
        saved = json.loads(content)["values"]["data.corpus_hash"]
        self.assertEqual(saved, about["corpus_hash"])
        (self.folder / "text").write_text("another text " * 1000)
        text = self.shown(*words, "--steps", "2", expected=2)
        self.assertIn(f"expected the saved corpus hash {saved}, found", text)

    def test_what_muon_does_not_go_with_is_an_option(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--steps", "1", "--optimizer", "muon")
        for option, value, other in (
            ("--exchange", "collective", "auto or shm"),
            ("--hook", "mean", "none"),
        ):
            text = self.shown(*words, option, value, ranks=2, expected=2)
            self.assertIn(f"{option}: expected {other} for ranks that shard with --optimizer", text)
        self.shown(*words, "--exchange", "collective", "--replicate", "2", ranks=2)

    def test_a_misspelt_option_gets_the_nearest_one(self):
        text = self.shown("--save-evry", "3", expected=2)
        self.assertIn("no option --save-evry (did you mean --save-every?)", text)

    def test_a_model_larger_than_the_memory_is_refused(self):
        for size in (("--vocab", "1000000000000"), ("--width", "1000000")):
            sizes = ("--layers", "1", "--heads", "2", "--data", "text", "--run", "x", *size)
            text = self.shown(*sizes, expected=2)
            self.assertIn("expected a model that fits into memory", text)
            self.assertEqual(text.count("\n"), 1, text)

    # ---- several hosts

    def test_ranks_that_were_told_different_options_are_refused(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--steps", "4")
        host = socket.gethostname()
        for rank_1, differences in (
            ("--lr 0.02", (("lr", "0.002", "0.02"),)),
            ("--save-every 2 --clip 0.5", (("clip", "1.0", "0.5"), ("save-every", "1000", "2"))),
            ("--profile p", (("profile", "none", "p"),)),
        ):
            text = self.shown(*words, ranks=2, rank_1=rank_1, expected=2)
            refusal = "; ".join(
                f"--{name}: expected the same on every rank, found {first} on rank 0 ({host}) "
                f"and {second} on rank 1 ({host})"
                for name, first, second in differences
            )
            said = [line for line in text.splitlines() if line.startswith("sherd train: --")]
            self.assertEqual(said, [f"sherd train: {refusal}"] * 2)
            self.assertFalse((self.folder / "x").exists())

    def test_ranks_may_have_their_own_paths_and_waits(self):
        shutil.copy(self.folder / "text", self.folder / "copy")
        words = (*SMALL, "--data", "text", "--run", "x", "--steps", "1")
        own = "--data copy --run y --quiet --deadline 50 --network-interface lo"
        self.assertIn("saved  x/checkpoints", self.shown(*words, ranks=2, rank_1=own))

    def test_a_rank_that_stands_still_is_waited_for_as_long_as_one_says(self):
        process = self.start(
            "--data", "text", "--run", "x", "--steps", "1000000", "--deadline", "4",
            launcher=("-n", "2", "--fake-hosts", "2"),
        )  # fmt: skip
        self.wait_for(process, "step 1/")
        children = f"/proc/{process.pid}/task/{process.pid}/children"
        rank_1 = int(pathlib.Path(children).read_text().split()[1])
        os.kill(rank_1, signal.SIGSTOP)
        begin = time.monotonic()
        # The thread that waited says it, or another one that was told.
        late = "did not answer rank 0 within 4 s"
        self.wait_for(process, f"rank 1 {late}", f"rank 1 was lost: it {late}")
        self.assertLess(time.monotonic() - begin, TIMEOUT_S / 2)
        self.assertEqual(process.wait(TIMEOUT_S), 1)

    def test_how_a_run_on_several_hosts_goes_on_is_no_command_for_one(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--steps", "2")
        hosts = ("--fake-hosts", "2")
        text = self.shown(*words, ranks=2, launcher=hosts)
        self.assertIn("resume the same command on each host with --run x --steps 4", text)

    # ---- memory

    def test_a_plan_says_what_a_run_would_cost_and_writes_nothing(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--plan")
        text = self.shown(*words, ranks=2)
        for part in ("1 layers of width 32", "2 ranks, full_shard", "optimizer", "s a step"):
            self.assertIn(part, text)
        self.assertFalse((self.folder / "x").exists())

    def test_a_plan_with_a_limit_has_what_other_limits_cost(self):
        words = (*SMALL, "--data", "text", "--plan", "--memory", "64GiB")
        self.assertIn("0 of 1", self.shown(*words).splitlines()[-1])

    def test_a_limit_for_memory_is_carried_out_with_the_same_losses(self):
        words = (*SMALL, "--data", "text", "--steps", "7")  # It decides after five.
        self.shown(*words, "--run", "x")
        text = self.shown(*words, "--run", "y", "--memory", "64GiB")
        self.assertIn("of 64.0 GiB: recomputes 0 of 1 layers", text)
        self.assertEqual(self.losses("x"), self.losses("y"))

    def test_a_limit_for_memory_that_cannot_be_kept_names_its_floor(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--memory", "20MiB")
        text = self.shown(*words, ranks=2, expected=2)
        self.assertIn("a memory limit of 20971520 bytes is below its floor", text)

    def test_a_loss_that_is_not_finite_ends_the_run_and_names_the_checkpoint_before(self):
        # Squares of the second step's activations are beyond fp32.
        words = (
            "--layers", "2", "--width", "16", "--heads", "2", "--seq", "16",
            "--batch", "2", "--warmup", "0", "--lr", "1e10", "--save-every", "1",
        )  # fmt: skip
        text = self.shown("--data", "text", "--run", "x", *words, expected=1)
        self.assertRegex(text, r"expected a finite loss, found \S+ at step 2; try a lower --lr, and")
        self.assertIn("remove x/checkpoints/step-1, from which", text)
        saved = [path.name for path in (self.folder / "x/checkpoints").glob("step-*")]
        self.assertEqual(saved, ["step-1"])

    def test_gradients_that_are_not_finite_end_the_run_and_nothing_is_saved(self):
        # With an embedding of zeros all logits are exactly 0, and the loss is the logarithm of the
        # vocabulary however the head is; its gradient has weights of 1e38 as factors.
        words = ("--data", "text", "--batch", "2", "--save-every", "1")
        self.shown(*SMALL, *words, "--model", "llama", "--run", "x", "--steps", "1")
        self.shown("x", "hf", command="checkpoint export")
        file = self.folder / "hf/model.safetensors"
        change_tensor(file, "model.embed_tokens.weight", lambda at: 0.0)
        change_tensor(file, "lm_head.weight", lambda at: 1e38 if at % 3 else -1e38)
        more = ("--init-from", "hf", "--seq", "16", "--run", "y")
        text = self.shown(*words, *more, expected=1)
        self.assertRegex(text, r"expected a finite norm of gradients, found \S+ at step 1; try a")
        self.assertEqual(list((self.folder / "y/checkpoints").glob("step-*")), [])

    def test_an_update_that_is_too_large_is_not_saved_and_a_lower_rate_begins_again(self):
        # Loss and gradients of the first step are finite, what the rate makes of them is not.
        words = (
            *SMALL, "--data", "text", "--run", "x", "--steps", "1", "--save-every", "1",
            "--warmup", "0", "--clip", "0",
        )  # fmt: skip
        text = self.shown(*words, "--lr", "1e38", ranks=2, expected=1)
        self.assertIn("expected finite weights, found others after step 1", text)
        self.assertEqual(list((self.folder / "x/checkpoints").glob("step-*")), [])
        self.shown(*words, "--lr", "1e-3", ranks=2)

    def test_a_limit_for_the_size_of_files_loses_a_checkpoint_and_not_the_run(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--steps", "3", "--save-every", "1")
        text = self.shown(*words, file_bytes_max=64 << 10, expected=1)
        self.assertIn("a checkpoint was not saved, and training goes on", text)
        self.assertIn("File too large", text)
        self.assertEqual(len(self.losses("x")), 3)

    # ---- options of training

    def test_micro_batches_do_not_change_what_is_learnt(self):
        words = (*SMALL, "--data", "text", "--steps", "4", "--save-every", "0")
        for kind in (("--strategy", "ddp"), ("--optimizer", "muon")):
            found = []
            for parts in ("1", "4"):  # Of the 6 rows of each rank: 2, 2, 2.
                run = f"{kind[1]}-{parts}"
                self.shown(*words, *kind, "--micro-batches", parts, "--run", run, ranks=2)
                found.append(self.losses(run))
            for one, four in zip(*found):
                self.assertAlmostEqual(one, four, delta=1e-4)

    def test_the_rate_falls_as_it_is_told(self):
        words = (
            *SMALL, "--data", "text", "--steps", "4", "--save-every", "0",
            "--warmup", "0", "--lr", "1", "--clip", "1e-6", "--lr-min-ratio", "0.2",
        )  # fmt: skip
        for decay, expected in (
            ("linear", [1, 0.8, 0.6, 0.4]),
            ("constant", [1, 1, 1, 1]),
        ):
            self.shown(*words, "--lr-decay", decay, "--run", decay)
            lines = (self.folder / decay / "metrics.jsonl").read_text().splitlines()
            rates = [json.loads(line)["lr"] for line in lines]
            for rate, right in zip(rates, expected, strict=True):
                self.assertAlmostEqual(rate, right)

    def test_a_new_run_begins_with_the_weights_of_another(self):
        words = ("--data", "text", "--eval-every", "1")
        self.shown(*SMALL, *words, "--run", "x", "--steps", "30")
        other = self.folder / "other"
        other.write_text((self.folder / "text").read_text()[::-1])
        begun = ("--init-from", "x", "--seed", "7", "--sample-tokens", "0")
        self.shown(*words, *begun, "--run", "y", "--steps", "2", ranks=2)
        self.assertLess(self.losses("y")[0], self.losses("x")[0] - 1)
        self.assertEqual(len(self.losses("y")), 2)
        self.shown("--data", other, *begun, "--run", "z", "--steps", "1")
        # The weights that it began with are needed no more.
        (self.folder / "x").rename(self.folder / "gone")
        text = self.shown("--config", "y/config.json", "--steps", "3")
        self.assertIn("resumes after step 2", text)
        text = self.shown(*words, *begun, "--run", "y", "--steps", "4", ranks=2)
        self.assertIn("resumes after step 3", text)
        # Those of another one would be ignored.
        other_begin = ("--sample-tokens", "0", "--steps", "50", "--init-from", "z")
        for run, seed, expected in (("y", 7, f"none or {self.folder}/x"), ("gone", 0, "none")):
            config = (self.folder / run / "config.json").read_text()
            text = self.shown(
                *words, *other_begin, "--run", run, "--seed", seed, ranks=2, expected=2
            )
            self.assertIn(f"--init-from: expected {expected}, since the run in {run} goes", text)
            self.assertEqual((self.folder / run / "config.json").read_text(), config)
        about = json.loads((self.folder / "y/config.json").read_text())["about"]
        self.assertEqual(about["init_from"], f"{self.folder}/x")
        text = self.shown(*words, "--init-from", "x", "--run", "w", expected=2)
        self.assertIn("--init-from: x: expected a run or checkpoint", text)
        text = self.shown(
            *words, "--init-from", "gone", "--width", "64", "--run", "v", expected=2
        )
        self.assertIn(
            "--width: expected 32, as in the model of gone/checkpoints/step-30, found 64",
            text,
        )

    def test_a_new_run_begins_with_a_hugging_face_model(self):
        words = ("--data", "text", "--sample-tokens", "0", "--seq", "8")
        llama = ("--model", "llama", "--kv-heads", "1")
        self.shown(*SMALL, *llama, "--data", "text", "--run", "x", "--steps", "30")
        self.shown("x", "hf", command="checkpoint export")
        # It is asked for a part of what it is, and reads fewer positions.
        begun = (*words, "--init-from", "hf", "--kv-heads", "1")
        self.shown(*begun, "--run", "y", "--steps", "1", ranks=2)
        self.shown(*words, "--init-from", "x", "--run", "z", "--steps", "1")
        self.assertLess(self.losses("y")[0], self.losses("x")[0] - 1)
        self.assertAlmostEqual(self.losses("y")[0], self.losses("z")[0], delta=1e-4)
        text = self.shown(*words, "--init-from", "hf", "--model", "gpt", expected=2)
        self.assertIn("--model: expected llama, as in the model of hf, found gpt", text)
        weights = self.folder / "hf/model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4])
        for ranks in (0, 2):
            text = self.shown(*begun, "--run", "v", expected=2, ranks=ranks)
            self.assertIn("hf/model.safetensors", text)

    def test_dropout_is_the_same_when_layers_are_computed_again(self):
        words = (
            *SMALL, "--data", "text", "--steps", "3", "--save-every", "0",
            "--micro-batches", "2",
        )  # fmt: skip
        again = ("--dropout", "0.3", "--recompute-activations")
        for run, more in (("x", ()), ("y", again[:2]), ("z", again)):
            self.shown(*words, *more, "--run", run, ranks=2)
        self.assertEqual(self.losses("y"), self.losses("z"))
        self.assertNotEqual(self.losses("x"), self.losses("y"))

    def test_the_average_of_the_weights_is_saved_and_goes_on(self):
        words = (*SMALL, "--data", "text", "--ema", "0.75", "--keep", "0")
        every = (*words, "--save-every", "1")
        self.shown(*every, "--run", "x", "--steps", "4", ranks=2)
        self.shown(*every, "--run", "y", "--steps", "4", "--stop-at", "2", ranks=2)
        self.shown(*every, "--run", "y", "--steps", "4")
        # The first is made of what the weights were before any step.
        average = self.whole("x/checkpoints/step-1", "ema")
        self.assertIn("wte.weight", average)
        for step in range(2, 5):
            weights = self.whole(f"x/checkpoints/step-{step}", "model")
            for name, old in average.items():
                new = zip(old, weights[name], strict=True)
                average[name] = [0.75 * a + 0.25 * w for a, w in new]
        for run in ("x", "y"):
            found = self.whole(f"{run}/checkpoints/step-4", "ema")
            self.assertEqual(found.keys(), average.keys())
            for name, numbers in found.items():
                for one, other in zip(numbers, average[name], strict=True):
                    self.assertAlmostEqual(one, other, delta=1e-4)
        self.uses_the_average("x")

    def uses_the_average(self, run):
        """generate, eval and export take the averaged weights with --weights ema."""
        words = ("--from", run, "--data", "text", "--json")
        losses = [
            json.loads(self.shown(*words, *more, command="eval", ranks=ranks))["loss"]
            for more, ranks in (((), 0), (("--weights", "ema"), 0), (("--weights", "ema"), 2))
        ]
        self.assertNotEqual(losses[0], losses[1])
        self.assertAlmostEqual(losses[1], losses[2], delta=1e-5)
        self.shown(run, "hf", "--weights", "ema", command="checkpoint export")
        words = ("--from", "hf", "--data", "text", "--json")
        exported = json.loads(self.shown(*words, command="eval"))
        self.assertAlmostEqual(exported["loss"], losses[1], delta=1e-6)
        words = ("--prompt", "a", "--tokens", "1", "--weights", "ema")
        self.shown("--from", run, *words, command="generate")

    def test_an_average_begins_with_the_weights_of_the_run(self):
        words = (*SMALL, "--data", "text", "--run", "x", "--keep", "0")
        every = (*words, "--save-every", "1")
        self.shown(*every, "--steps", "4", "--stop-at", "2")
        for command in ("eval --data text", "generate --prompt a"):
            text = self.shown(
                "--from", "x", "--weights", "ema", command=command, expected=2
            )
            self.assertIn("x: expected the averaged weights of a run with --ema", text)
            self.assertIn("found none in x/checkpoints/step-2", text)
        text = self.shown(*every, "--steps", "4", "--stop-at", "3", "--ema", "0.75", ranks=2)
        self.assertIn("has no average of the weights, which begins", text)
        before, after = (self.whole(f"x/checkpoints/step-{i}", "model") for i in (2, 3))
        for name, numbers in self.whole("x/checkpoints/step-3", "ema").items():
            for one, old, new in zip(numbers, before[name], after[name], strict=True):
                self.assertAlmostEqual(one, 0.75 * old + 0.25 * new, delta=1e-5)
        text = self.shown(*every, "--steps", "4")
        self.assertIn("its average of the weights is not used, since --ema is 0", text)
        self.assertEqual(len(self.losses("x")), 4)
        process = self.start(
            "--data", "text", "--run", "x", "--ema", "0.5",
            launcher=("--fault-tolerant", "--replicas", "1", "--samples-per-replica", "6"),
        )  # fmt: skip
        text = process.stdout.read()
        self.assertIn("--ema: expected 0 for replicas that go on from x/checkpoints/step-4", text)
        self.assertEqual(process.wait(TIMEOUT_S), 2)

    def test_a_run_in_fp16_goes_on_with_its_scale(self):
        words = (*SMALL, "--data", "text", "--dtype", "fp16")
        self.shown(*words, "--run", "x", "--steps", "4", ranks=2)
        self.shown(*words, "--run", "y", "--steps", "4", "--stop-at", "2", ranks=2)
        self.shown(*words, "--run", "y", "--steps", "4", ranks=2)
        fields = ("loss", "loss_scale", "skipped")
        self.assertEqual(self.metrics("y", fields), self.metrics("x", fields))
        for section in ("model", "scaler"):
            found = self.whole("y/checkpoints/step-4", section)
            self.assertEqual(found, self.whole("x/checkpoints/step-4", section))
        scale = self.whole("x/checkpoints/step-4", "scaler")["scale"][0]
        self.assertEqual(scale, self.metrics("x", fields)[-1][1])
        # And without it in another dtype, and back.
        for dtype, steps in (("fp32", "5"), ("fp16", "6")):
            again = ("--run", "y", "--steps", steps, "--dtype", dtype)
            self.shown(*SMALL, "--data", "text", *again)

    def test_a_run_in_fp16_with_muon_goes_on_after_a_skipped_step(self):
        # Weights that are sure of the wrong token: the gradients, which are scaled, become infinite.
        words = (
            "--layers", "1", "--width", "32", "--heads", "2", "--sample-tokens", "0",
            "--seq", "1", "--batch", "1", "--data", "text",
        )  # fmt: skip
        self.shown(*words, "--run", "x", "--steps", "3", "--lr", "0.3")
        muon = ("--optimizer", "muon", "--dtype", "fp16", "--init-from", "x")
        self.shown(*words, *muon, "--run", "y", "--steps", "8")
        skipped = [skipped for (skipped,) in self.metrics("y", ["skipped"])]
        self.assertTrue(skipped[0])
        self.assertFalse(skipped[-1])

    # ---- hooks

    def test_power_sgd_goes_on_with_its_error_feedback(self):
        words = (
            *SMALL, "--data", "text", "--strategy", "ddp", "--hook", "power_sgd",
            "--steps", "15",
        )  # fmt: skip
        self.shown(*words, "--run", "whole", ranks=2)
        # It compresses from step 10 on.
        self.shown(*words, "--run", "x", "--stop-at", "13", ranks=2)
        self.shown(*words, "--run", "x", ranks=2)
        self.assertEqual(self.losses("x"), self.losses("whole"))

    def test_power_sgd_of_a_mesh_goes_on_with_that_of_each_shard(self):
        words = (
            *SMALL, "--data", "text", "--replicate", "2", "--hook", "power_sgd",
            "--steps", "14",
        )  # fmt: skip
        self.shown(*words, "--run", "whole", ranks=4)
        self.shown(*words, "--run", "x", "--stop-at", "12", ranks=4)
        self.shown(*words, "--run", "x", ranks=4)
        self.assertEqual(self.losses("x"), self.losses("whole"))

    def test_the_memory_of_a_hook_is_not_for_other_ranks(self):
        words = (
            *SMALL, "--data", "text", "--strategy", "ddp", "--hook", "power_sgd",
            "--run", "x",
        )  # fmt: skip
        self.shown(*words, "--steps", "12", ranks=2)
        text = self.shown(*words, "--steps", "13")
        self.assertIn("what its hook remembered is not used", text)
        self.assertEqual(len(self.losses("x")), 13)


if __name__ == "__main__":
    main()
