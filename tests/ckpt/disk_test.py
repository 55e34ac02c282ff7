#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`sherd train` on a disk that damages a checkpoint, or is full for a while.

  disk_test.py SHERD SCRATCH
"""

import json
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 60
SMALL_FILE_BYTES = 3000  # Room for config.json, but for no checkpoint.


def job(run, *more):
    return [
        str(word)
        for word in (
            "train", "--layers", "1", "--width", "32", "--heads", "2", "--seq", "16",
            "--data", ROOT / "LICENSE", "--sample-tokens", "0", "--save-every", "2",
            "--keep", "2", "--run", run, *more,
        )
    ]  # fmt: skip


def steps_in(run):
    lines = (run / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line)["step"] for line in lines]


def passes_over_a_damaged_checkpoint(sherd, scratch):
    run = scratch / "damaged"
    two_ranks = [sherd, "run", "-n", "2", "--", sherd]
    subprocess.run(
        two_ranks + job(run, "--steps", 4), check=True, capture_output=True
    )
    file = run / "checkpoints" / "step-4" / "model-00001-000.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    done = subprocess.run(
        two_ranks + job(run, "--steps", 6),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
    assert done.stderr.count("step-2 is loaded, not a newer one") == 1, done.stderr
    assert "step-4/model-00001-000.safetensors" in done.stderr, done.stderr
    assert "resumes after step 2" in done.stdout, done.stdout
    assert steps_in(run) == [1, 2, 3, 4, 5, 6]


def start_on_a_full_disk(sherd, run, steps):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    return subprocess.Popen(
        [sherd] + job(run, "--steps", steps),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A write beyond the limit fails, as Python ignores SIGXFSZ.
        restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_FSIZE, (SMALL_FILE_BYTES, limit)
        ),
    )


def trains_on_while_the_disk_is_full(sherd, scratch):
    run = scratch / "full"
    # More steps than it will make: it ends when it is told to.
    with start_on_a_full_disk(sherd, run, 1_000_000) as process:
        wanted = {"a checkpoint was not saved", "metrics.jsonl: expected room"}
        shown = ""
        while any(part not in shown for part in wanted):
            line = process.stderr.readline()
            assert line, f"ended with {process.wait()}: {shown}"
            shown += line
        assert not list(run.glob("checkpoints/step-*"))
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        assert soft == SMALL_FILE_BYTES
        deadline = time.monotonic() + TIMEOUT_S
        while not list(run.glob("checkpoints/step-*")):
            assert time.monotonic() < deadline, shown
            assert process.poll() is None, process.stderr.read()
        process.send_signal(signal.SIGTERM)
        process.stderr.read()
        assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM
    steps = steps_in(run)
    assert steps == list(range(1, len(steps) + 1)), "a line was lost"
    newest = max(int(path.name[5:]) for path in run.glob("checkpoints/step-*"))
    assert newest == steps[-1]


def fails_when_the_last_checkpoint_does(sherd, scratch):
    with start_on_a_full_disk(sherd, scratch / "last", 4) as process:
        shown = process.stderr.read()
        assert process.wait(TIMEOUT_S) == 1, shown
    assert shown.count("a checkpoint was not saved") == 1, shown
    assert "sherd train: [ckpt] cannot write" in shown, shown


def names_the_rank_that_may_not_write(sherd, scratch):
    (scratch / "file").touch()
    for _ in range(4):  # Which rank ends first is up to chance.
        words = job(scratch / "file" / "run", "--steps", 2)
        done = subprocess.run(
            [sherd, "run", "-n", "2", "--", sherd, *words],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, done
        report = done.stderr[done.stderr.index("sherd: error: ") :]
        # The second on a machine so busy that rank 0 did not end within the launcher's grace.
        assert (
            "rank 0 exited with code 1 and was the first" in report
            or "rank 1 exited with code 1 because of rank 0" in report
        ), done.stderr
        assert "Not a directory" in report, done.stderr


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    scratch = pathlib.Path(sys.argv[2])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for test in (
        passes_over_a_damaged_checkpoint,
        trains_on_while_the_disk_is_full,
        fails_when_the_last_checkpoint_does,
        names_the_rank_that_may_not_write,
    ):
        test(sys.argv[1], scratch)


if __name__ == "__main__":
    main()
