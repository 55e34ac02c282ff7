#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A new user's first hour, from text of one's own to a model that others load.

  first_hour.py SHERD PRINT_LOGITS SCRATCH

Trains on two ranks, stops by Ctrl-C, moves the run, goes on elsewhere on one rank,
merges the checkpoint, loads it in plain LibTorch, exports it, and has transformers
and `sherd generate` make the same tokens. Exit status 77, a counted skip, where transformers is
not installed (scripts/setup puts it into build/clients, where it can).
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

EXIT_SKIPPED = 77
TIMEOUT_S = 120
TOKENS = 16
NEW_TOKENS = 12
MORE_STEPS = 200  # Enough to have learned more than one letter.
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build" / "clients"))
MODEL = {"layers": 2, "width": 64, "heads": 4, "seq": 32, "lr": 0.01}


class User:
    def __init__(self, sherd, print_logits, scratch):
        self.sherd = sherd
        self.print_logits = print_logits
        self.home = scratch / "home"
        self.elsewhere = scratch / "elsewhere"
        self.home.mkdir(parents=True)
        self.elsewhere.mkdir()

    def run(self, folder, *words):
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (words, done)
        return done.stdout

    def has_text(self):
        text = [path.read_text() for path in sorted((ROOT / "docs").glob("*/*.md"))]
        (self.home / "own.txt").write_text("\n".join(text))

    def trains_and_stops(self):
        """Returns the step at which it was stopped."""
        options = [f"--{name}={value}" for name, value in MODEL.items()]
        with subprocess.Popen(
            [
                self.sherd, "run", "-n", "2", "--", self.sherd, "train", *options,
                "--data", "own.txt", "--steps", "100000", "--save-every", "5",
                "--sample-tokens", "0", "--run", "first",
            ],
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell's background job ignores it, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as process:  # fmt: skip
            deadline = time.monotonic() + TIMEOUT_S
            while not list(self.home.glob("first/checkpoints/step-*")):
                assert process.poll() is None, process.stdout.read()
                assert time.monotonic() < deadline
            process.send_signal(signal.SIGINT)
            shown = process.stdout.read()
        saved = re.search(r"saved \S+/step-(\d+)", shown)
        assert saved, shown
        return int(saved.group(1))

    def moves_and_goes_on(self, step):
        (self.home / "first").rename(self.elsewhere / "moved")
        shown = self.run(
            self.elsewhere, self.sherd, "train", "--config", "moved/config.json",
            "--steps", step + MORE_STEPS,
        )  # fmt: skip
        assert f"resumes after step {step}" in shown, shown
        lines = (self.elsewhere / "moved" / "metrics.jsonl").read_text().split("\n")
        steps = [json.loads(line)["step"] for line in lines[:-1]]
        assert steps == list(range(1, step + MORE_STEPS + 1)), steps

    def tokens_of(self, model):
        """How it goes on greedily, in a program without a run."""
        shown = self.run(
            self.elsewhere, self.print_logits, model, "gpt", MODEL["layers"],
            MODEL["width"], MODEL["heads"], 0, MODEL["seq"], TOKENS,
        )  # fmt: skip
        tokens = [int(token) for token in re.findall(r"^token (\d+)", shown, re.M)]
        assert len(tokens) == TOKENS + NEW_TOKENS, shown
        return tokens[TOKENS:]

    def merges_for_plain_libtorch(self):
        self.run(
            self.elsewhere, self.sherd, "checkpoint", "merge", "--torch", "moved",
            "archives",
        )  # fmt: skip
        return self.tokens_of("archives/model.pt")

    def exports_for_transformers(self):
        import torch
        from transformers import AutoModelForCausalLM

        self.run(
            self.elsewhere, self.sherd, "checkpoint", "export", "moved", "exported"
        )
        model = AutoModelForCausalLM.from_pretrained(self.elsewhere / "exported")
        ids = torch.tensor([[(37 * i + 65) % 256 for i in range(TOKENS)]])
        made = model.eval().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return made[0, TOKENS:].tolist()

    def generates(self):
        prompt = bytes((37 * i + 65) % 256 for i in range(TOKENS))
        shown = self.run(
            self.elsewhere, self.sherd, "generate", "--from", "moved", "--prompt",
            os.fsdecode(prompt), "--tokens", NEW_TOKENS, "--temperature", 0, "--json",
        )  # fmt: skip
        return json.loads(shown)["ids"]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    try:
        import transformers  # noqa: F401
    except ImportError as missing:
        print(f"skipped: {missing}")
        sys.exit(EXIT_SKIPPED)
    scratch = pathlib.Path(sys.argv[3])
    shutil.rmtree(scratch, ignore_errors=True)
    user = User(sys.argv[1], sys.argv[2], scratch)
    user.has_text()
    user.moves_and_goes_on(user.trains_and_stops())
    newest = max(
        user.elsewhere.glob("moved/checkpoints/step-*"),
        key=lambda path: int(path.name.removeprefix("step-")),
    )
    expected = user.tokens_of(newest)
    assert len(set(expected)) > 1, expected
    assert user.merges_for_plain_libtorch() == expected
    assert user.exports_for_transformers() == expected
    assert user.generates() == expected
    print(f"the same {NEW_TOKENS} tokens from all four: {expected}")


if __name__ == "__main__":
    main()
