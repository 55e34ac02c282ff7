#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the same model with sherd and with torchft, kills replicas at the same
steps, and prints side by side what each failure cost.

  scripts/setup_torchft
  bench/faults/torchft_compare.py [--replicas 2 3] [--rounds 2] [--seed 1]
      [--systems sherd sherd-python torchft torchft-1s] [--json FILE] [--keep FOLDER]

Replicas have one rank and one thread each. Each is killed in turn with kill -9,
--every steps apart, a random time behind a commit, and is started again at
once; the next kill waits until it is back. `torchft` has the timeouts
of its lighthouse and manager; `torchft-1s` takes a replica for dead after a
second without heartbeat and has limits of 10 s. The last line is JSON.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from commits import Kill, failures
from systems import SherdPythonRun, SherdRun, TorchftRun

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
POLL_S = 0.005
TORCHFT = {
    "torchft": {"heartbeat_ms": 5000, "join_ms": 60000, "timeout_s": 60},
    "torchft-1s": {"heartbeat_ms": 1000, "join_ms": 10000, "timeout_s": 10},
}
TEXT_BYTES = 4_000_000


def write_text(path, torch_folder):
    """The headers of LibTorch, which are on every machine that has it."""
    taken = 0
    with open(path, "wb") as out:
        for header in sorted(pathlib.Path(torch_folder, "include").rglob("*.h")):
            taken += out.write(header.read_bytes()[: TEXT_BYTES - taken])


def start(system, work, folder):
    if system == "sherd":
        return SherdRun(work, folder)
    if system == "sherd-python":
        return SherdPythonRun(work, folder)
    return TorchftRun(work, folder, TORCHFT[system])


def schedule(work, seed):
    """(step, victim, seconds behind the commit): the same for each system."""
    chance = random.Random(seed)
    return [
        (
            work.every // 2 + work.every * i,
            (1 + i) % work.replicas,
            chance.uniform(0, work.phase_s),
        )
        for i in range(work.replicas)
    ]


class FaultInjector:
    """Kills when it is time, and only when all replicas are there."""

    def __init__(self, run, plan):
        self.run, self.plan = run, list(plan)
        self.awaited = list(range(run.work.replicas))
        self.known = [0] * run.work.replicas
        self.due_s = None

    def all_there(self):
        counts = [len(one) for one in self.run.journal.commits]
        self.awaited = [r for r in self.awaited if counts[r] == self.known[r]]
        return not self.awaited

    def turn(self, now_s):
        if not self.plan or not self.all_there():
            return
        step, victim, phase_s = self.plan[0]
        watched = (victim + 1) % self.run.work.replicas
        if self.due_s is None and self.run.last_step(watched) >= step:
            self.due_s = now_s + phase_s
        if self.due_s is not None and now_s >= self.due_s:
            self.inject(victim, watched)

    def inject(self, victim, watched):
        kill = Kill(time.monotonic(), victim, self.run.last_step(watched))
        self.run.journal.kills.append(kill)
        self.run.kill(victim)
        self.plan.pop(0)
        self.due_s = None
        self.known = [len(one) for one in self.run.journal.commits]
        self.awaited = [victim]


def measure(system, work, seed, folder):
    folder.mkdir(parents=True)
    run = start(system, work, folder)
    injector = FaultInjector(run, schedule(work, seed))
    begin_s = time.monotonic()
    try:
        while not run.over() and time.monotonic() < begin_s + work.limit_s:
            run.look()
            injector.turn(time.monotonic())
            time.sleep(POLL_S)
        run.look()
        end_s = time.monotonic()
        in_time = run.over()
    finally:
        run.close()
    ends = [run.ends.get(r) for r in range(work.replicas)]
    journal = json.dumps(dataclasses.asdict(run.journal))
    (folder / "journal.json").write_text(journal, encoding="utf-8")
    return {
        "system": system,
        "replicas": work.replicas,
        "seed": seed,
        "failures": failures(run.journal, end_s),
        "kills_missed": len(injector.plan),
        "run_s": end_s - begin_s,
        "in_time": in_time,
        "unasked_deaths": run.deaths,
        "load": os.getloadavg()[0],
        "import_s": run.imports_s,
        "ends": ends,
        "ends_equal": None not in ends and len(set(ends)) == 1,
    }


def median_text(values):
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    missing = len(values) - len(known)
    text = f"{statistics.median(known):.2f} ({min(known):.2f}-{max(known):.2f})"
    return text + (f", {missing} never" if missing else "")


def row(runs):
    """One line of the table, of the runs of one system with as many replicas."""
    found = [one for run in runs for one in run["failures"]]
    column = {
        key: [one[key] for one in found]
        for key in ("step_s", "stall_s", "return_s", "discarded_steps")
    }
    discarded = column["discarded_steps"]
    equal = sum(run["ends_equal"] for run in runs)
    return (
        f"{runs[0]['system']:12} {runs[0]['replicas']:>8} {len(found):>5}  "
        f"{statistics.median(column['step_s'] or [0]):6.2f}  "
        f"{statistics.mean(discarded or [0]):9.2f}  "
        f"{median_text(column['stall_s']):>19}  "
        f"{median_text(column['return_s']):>21}  "
        f"{equal} of {len(runs)}"
    )


HEADING = (
    f"{'system':12} {'replicas':>8} {'kills':>5}  {'step s':>6}  "
    f"{'discarded':>9}  {'stall s':>19}  {'return s':>21}  equal ends"
)


def versions(options):
    code = (
        "import importlib.metadata as m, json; print(json.dumps({n: "
        "m.version(n) for n in ('torch', 'torchft-nightly')}))"
    )
    found = subprocess.run(
        [options.torchft_python, "-c", code],
        check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return json.loads(found.stdout) | {
        "sherd's tree": commit.stdout.strip(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
    }


def torch_folder(options):
    code = "import importlib.util as u; print(u.find_spec('torch').origin)"
    found = subprocess.run(
        [options.torchft_python, "-c", code],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return pathlib.Path(found.stdout.strip()).parent


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sherd", default=str(ROOT / "build/release/sherd"))
    parser.add_argument(
        "--torchft-python", default=str(ROOT / "build/torchft-venv/bin/python")
    )
    parser.add_argument(
        "--sherd-python", default=str(ROOT / ".venv/bin/python"),
        help="a Python with the torch that sherd is built with",
    )  # fmt: skip
    parser.add_argument(
        "--systems", nargs="+", choices=("sherd", "sherd-python", *TORCHFT),
        default=["sherd", "sherd-python", *TORCHFT],
    )  # fmt: skip
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=40, help="steps")
    parser.add_argument("--phase-s", type=float, default=0.3)
    parser.add_argument("--limit-s", type=float, default=600, help="of a run")
    sizes = {"layers": 4, "width": 256, "heads": 4, "sequence": 128, "batch": 4}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--json", help="where results go, too")
    parser.add_argument("--keep", help="a new folder for journals and logs")
    options = parser.parse_args()
    if min(options.replicas) < 2:
        parser.error("--replicas: expected 2 or more")
    if not pathlib.Path(options.torchft_python).exists():
        sys.exit("expected build/torchft-venv, found none; run scripts/setup_torchft")
    return options


def compare(options, scratch):
    options.data = scratch / "text"
    write_text(options.data, torch_folder(options))
    runs = []
    for replicas in options.replicas:
        work = argparse.Namespace(**vars(options) | {"replicas": replicas})
        work.steps = work.every * (replicas + 1)
        # In turns, each round in another order: the machine changes meanwhile.
        for i in range(options.rounds):
            first = i % len(options.systems)
            for system in options.systems[first:] + options.systems[:first]:
                name = f"{system}-{replicas}-{i}"
                runs.append(
                    measure(system, work, options.seed + i, scratch / name)
                )
                print(row(runs[-1:]), file=sys.stderr, flush=True)
    return runs


def main():
    options = parse()
    about = versions(options)
    scratch = pathlib.Path(options.keep or tempfile.mkdtemp(prefix="torchft-"))
    scratch.mkdir(parents=True, exist_ok=bool(not options.keep))
    try:
        runs = compare(options, scratch)
    finally:
        if not options.keep:
            shutil.rmtree(scratch)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(HEADING)
    for replicas in options.replicas:
        for system in options.systems:
            print(row([
                run for run in runs
                if run["system"] == system and run["replicas"] == replicas
            ]))  # fmt: skip
    results = json.dumps({"versions": about, "seed": options.seed, "runs": runs})
    print(results)
    if options.json:
        pathlib.Path(options.json).write_text(results + "\n")


if __name__ == "__main__":
    main()
