# SPDX-License-Identifier: Apache-2.0
"""What tests of watching share: a small model, commands, and a job that trains."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

EXIT_SKIPPED = 77
TIMEOUT_S = 120
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAYERS, WIDTH, SEQUENCE, BATCH, VALIDATE = 1, 32, 16, 4, 4
MODEL = (
    "--layers", LAYERS, "--width", WIDTH, "--heads", 2, "--seq", SEQUENCE,
    "--data", ROOT / "LICENSE", "--sample-tokens", 0, "--eval-every", VALIDATE,
)  # fmt: skip


def environment():
    """This process's variables, without those of another launcher."""
    foreign = ("OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_", "SHERD_")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and name not in ("RANK", "WORLD_SIZE")
    }
    return clean | {"OMP_NUM_THREADS": "1"}


def outcome_of(*words):
    return subprocess.run(
        [str(word) for word in words], env=environment(), timeout=TIMEOUT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def checked(done, status):
    if done.returncode != status:
        sys.exit(f"{done.args}: expected {status}, found {done.returncode}:\n{done.stdout}")
    return done.stdout


def call(*words, status=0):
    """What a command prints, stderr included."""
    return checked(outcome_of(*words), status)


def expect(what, *parts):
    """That all parts are in a text."""
    for part in parts:
        if part not in what:
            sys.exit(f"expected '{part}' in:\n{what}")


def wait_for(what, found):
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.01)
    sys.exit(f"expected {what} within {TIMEOUT_S} s")


def answer_to(*words):
    """What a command prints that asks a coordinator, which may be too busy to answer at first."""

    def shown():
        done = outcome_of(*words)
        late = "expected the status page of a coordinator, found that nobody" in done.stdout
        return None if late else checked(done, 0)

    return wait_for("an answer of the coordinator", shown)


def whole_lines(path):
    return path.read_text().split("\n")[:-1] if path.exists() else []


def committed(address):
    """The step that the coordinator's status page names; -1 while it does not answer."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{address}/status.json", timeout=10) as page:
            return json.load(page)["canonical"]["step"]
    except OSError:
        return -1


@contextlib.contextmanager
def job(sherd, run):
    """Two replicas that train and do not end; yields their status page."""
    command = [
        sherd, "run", "--fault-tolerant", "--replicas", 2, "--samples-per-replica",
        BATCH, "--dead-after", 5, "--run-dir", run, "--", sherd, "train", *MODEL,
        "--steps", 10**6, "--run", run,
    ]  # fmt: skip
    launcher = subprocess.Popen(
        [str(word) for word in command], env=environment(), start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for replica in range(2):
            metrics = run / f"replica-{replica}" / "metrics.jsonl"
            wait_for("twelve steps", lambda: len(whole_lines(metrics)) >= 12)
        address = (run / "coordinator.address").read_text().split("\n")[1]
        # The page may be of a moment before the steps above.
        wait_for("a status page of these steps", lambda: committed(address) >= 12)
        yield address
    finally:
        launcher.terminate()
        launcher.wait()
