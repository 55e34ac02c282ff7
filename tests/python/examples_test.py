# SPDX-License-Identifier: Apache-2.0
"""The examples in Python run under the launchers that they name, and learn.

Usage: examples_test.py CASE PACKAGE_FOLDER SHERD. CASE is a launcher, for
train_gpt2.py, or the name of an example that trains with clients.
"""

import os
import re
import subprocess
import sys

import clients

EXAMPLES = clients.ROOT / "examples" / "python"
STEPS = 11


def outcome_of(package, launcher, example, *arguments):
    path = os.pathsep.join([package, str(clients.FOLDER)])
    return subprocess.run(
        [*launcher, str(EXAMPLES / example), *map(str, arguments)], check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=800,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})


def must_refuse_no_text(package, example):
    done = outcome_of(package, [sys.executable], example, "--text", EXAMPLES)
    if done.returncode != 2 or "expected a folder with *.md files, found" not in done.stdout:
        sys.exit(f"{example} without text: {done.returncode}, {done.stdout}")


def started(package, launcher, example, *arguments):
    """What an example prints."""
    done = outcome_of(package, launcher, example, *arguments)
    print(done.stdout)
    if done.returncode != 0:
        sys.exit(f"{example} ended with {done.returncode}")
    return done.stdout


def must_fall(printed):
    """The losses that an example printed."""
    losses = [float(found) for found in re.findall(r"loss ([0-9.]+)", printed)]
    if len(losses) < 2 or losses[-1] >= losses[0] - 0.1:
        sys.exit(f"expected losses that fall, found {losses}")


def main():
    case, package, sherd = sys.argv[1:4]
    launchers = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run",
                     "--nproc-per-node", "2"],
        "sherd_run": [sherd, "run", "-n", "2", "--", sys.executable]}
    text = clients.ROOT / "docs" / "guide"
    if case in launchers:
        must_fall(started(package, launchers[case], "train_gpt2.py",
                          "--text", text, "--steps", STEPS))
        return
    clients.need("transformers", "accelerate", "peft")
    must_refuse_no_text(package, f"{case}.py")
    must_fall(started(package, launchers["torchrun"], f"{case}.py",
                      "--text", text))


if __name__ == "__main__":
    main()
