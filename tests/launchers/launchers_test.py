#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same program trains alike whoever starts its two ranks.

  launchers_test.py LAUNCHER SHERD SCRATCH

LAUNCHER is torchrun, mpirun or slurm_variables; SHERD the built command; SCRATCH
a folder that is replaced. Trains a tiny model under `sherd run` and under the
launcher; every loss must be the same number. Exit status 77, a counted skip,
where mpirun is missing and scripts/setup does not install it.
"""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys

RANKS = 2
TIMEOUT_S = 100
EXIT_SKIPPED = 77
JOB = (
    "train", "--steps", "4", "--layers", "2", "--width", "32", "--heads", "2",
    "--seq", "16", "--sample-tokens", "0", "--data",
    str(pathlib.Path(__file__).resolve().parent.parent.parent / "LICENSE"),
)  # fmt: skip


SLURM_JOBS = itertools.count(os.getpid())


class PortInUseError(Exception):
    """Ranks take a port that follows from their job's id; another program may have it."""


def environment(**more):
    """This process's variables without any that a launcher sets."""
    foreign = ("OMPI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "MASTER_", "LOCAL_")
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(foreign) and name not in ("RANK", "WORLD_SIZE")
    }
    return clean | {"OMP_NUM_THREADS": "1"} | more


def start_all(commands):
    """Runs [(command, environment)] at once and waits for all of them."""
    started = [
        subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for command, env in commands
    ]
    try:
        for process in started:
            text = process.communicate(timeout=TIMEOUT_S)[0]
            if process.returncode != 0 and "which is in use" in text:
                raise PortInUseError(text)
            if process.returncode != 0:
                sys.exit(f"{process.args} ended with {process.returncode}:\n{text}")
    finally:
        for process in started:
            process.kill()  # Of those that have ended: nothing.


def under_sherd(job):
    start_all([([job[0], "run", "-n", str(RANKS), "--", *job], environment())])


def under_torchrun(job):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python"]
    # Without "--" torchrun takes --run for its own --run-path.
    launcher += ["--standalone", "--nproc-per-node", str(RANKS), "--"]
    start_all([([*launcher, *job], environment())])


def under_mpirun(job):
    if shutil.which("mpirun") is None:
        if shutil.which("dpkg") is not None:
            sys.exit("expected mpirun, found none: run scripts/setup")
        print("skipped: there is no mpirun, and no dpkg to install it with")
        sys.exit(EXIT_SKIPPED)
    # Tests may run as root, in a container, on fewer cores than ranks.
    launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe"]
    launcher += ["--bind-to", "none", "-n", str(RANKS)]
    start_all([([*launcher, *job], environment())])


def under_slurm_variables(job):
    """No Slurm runs here: what srun would set for a step of two tasks."""
    step = {
        "SLURM_JOB_ID": str(next(SLURM_JOBS)),  # Makes the port this run's own.
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_STEP_TASKS_PER_NODE": str(RANKS),
        "SLURM_NTASKS": str(RANKS),
        "SLURM_NODEID": "0",
    }
    start_all(
        [
            (
                job,
                environment(
                    **step, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)
                ),
            )
            for rank in range(RANKS)
        ]
    )


def losses(folder):
    """Every loss of a run, after a look at how many ranks it had."""
    about = json.loads((folder / "config.json").read_text())["about"]
    if about["world_size"] != str(RANKS):
        sys.exit(f"{folder}: expected {RANKS} ranks, found {about['world_size']}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    name, sherd, scratch = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    launch = {
        "torchrun": under_torchrun,
        "mpirun": under_mpirun,
        "slurm_variables": under_slurm_variables,
    }[name]
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    found = {}
    for each, start in (("sherd run", under_sherd), (name, launch)):
        run = scratch / each.replace(" ", "_")
        job = [sherd, *JOB, "--run", str(run)]
        try:
            start(job)
        except PortInUseError:
            start(job)  # Another job, thus another port.
        found[each] = losses(run)
    print(found)
    if len(found[name]) != 4 or found[name] != found["sherd run"]:
        sys.exit(f"expected the losses of `sherd run` under {name}, found other ones")


if __name__ == "__main__":
    main()
