#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs PyTorch's own tests over sherd and prints a table of what came of each.

  SHERD_PYTORCH_TESTS=~/pytorch/test run.py PACKAGES [--part PART] [--files PATTERN]
      [--tests PATTERN]... [--limit SECONDS] [--report FILE] [--python PYTHON] [--own]

PACKAGES is the folder that holds sherd's Python package (build/release/python).
SHERD_PYTORCH_TESTS is the folder test/ of a checkout of PyTorch, at the release
that is installed. Nothing of it is copied. Where it is not set, the files in it
are left out; what is installed with PyTorch is run.

Exit status 0 when each applicable test passed or is in known_failures.txt, and 77,
a counted skip, when there was nothing to run: docs/design/pytorch_suite.md.
"""

import argparse
import fnmatch
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import tables
from suites import FILES, known_failures, not_applicable

HERE = pathlib.Path(__file__).resolve().parent
EXIT_SKIPPED = 77
CLIENTS = HERE.parent.parent / "build" / "clients"


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("packages", type=pathlib.Path)
    parser.add_argument("--part", default="*", help="collectives, FSDP2 or DDP")
    parser.add_argument("--files", default="*")
    parser.add_argument("--tests", action="append")
    parser.add_argument("--limit", type=float, default=300, help="of each test")
    parser.add_argument("--report", type=pathlib.Path, help="a Markdown file")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--own", action="store_true", help="PyTorch without sherd")
    given = parser.parse_args()
    given.pytorch = os.environ.get("SHERD_PYTORCH_TESTS", "")
    return given


def environment_of(file, given):
    """PyTorch's tests choose a network interface, and print how to repeat a test."""
    folders = [str(given.packages.resolve()), str(CLIENTS)]
    return {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(folders),
        "PYTORCH_PRINT_REPRO_ON_FAILURE": "0",
        **file.environment,
    }


def job_of(file, given, logs, tests):
    job = {
        "adapters": file.without_sherd() if given.own else file.adapters,
        "limit_s": given.limit,
        "logs": str(logs),
        "tests": tests,
        "of_file": file.tests,
        "without": file.without,
        "reasons": [] if given.own else not_applicable().of_file(file),
    }
    if file.module:
        return {**job, "module": file.module, "folders": []}
    path = file.path(given.pytorch)
    top = pathlib.Path(given.pytorch) / "distributed"
    return {**job, "file": str(path), "folders": [str(path.parent), str(top)]}


def work(file, given, logs, tests):
    """Yields what the worker says of each test."""
    words = [given.python, str(HERE / "worker.py")]
    job = json.dumps(job_of(file, given, logs, tests))
    with open(pathlib.Path(logs) / "worker.log", "w+") as said:
        with subprocess.Popen(
            [*words, job], env=environment_of(file, given), text=True,
            stdout=subprocess.PIPE, stderr=said,
        ) as worker:  # fmt: skip
            for line in worker.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        said.seek(0)
        why = said.read()[-2000:]
    if worker.returncode != 0:
        yield {"test": "(all)", "outcome": "failed", "why": why, "seconds": 0}


def run_file(file, given, logs):
    print(file.title, flush=True)
    rows = {}
    for row in work(file, given, logs, given.tests or ["*"]):
        rows[row["test"]] = row
        print(tables.line(row), flush=True)
    return run_again(file, given, logs, rows)


def run_again(file, given, logs, rows):
    """PyTorch's tests have short time limits of their own, which a busy machine may
    miss: what fails, and is not known to, is run once more."""
    again = [name for _, name in failures([(file, list(rows.values()))])]
    for row in work(file, given, logs, again) if again else []:
        if row["outcome"] == "passed":
            row["why"] = "at the second attempt"
        rows[row["test"]] = row
        print(tables.line(row), flush=True)
    return list(rows.values())


def failures(results):
    """(file, test) of those that failed and are not known to."""
    known = known_failures()
    return [
        (file, row["test"])
        for file, rows in results
        for row in rows
        if row["outcome"] == "failed" and not known.of(file, row["test"])
    ]


def missing_packages(python):
    """torch.testing._internal imports packages that torch does not bring."""
    words = f"import sys; sys.path.append({str(CLIENTS)!r}); import numpy, expecttest"
    done = subprocess.run([python, "-c", words], capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else ""


def main():
    given = arguments()
    if missing := missing_packages(given.python):
        print(f"skipped: {missing}")
        sys.exit(EXIT_SKIPPED)
    files = [
        file
        for file in FILES
        if fnmatch.fnmatchcase(file.part, given.part)
        and fnmatch.fnmatchcase(file.name, given.files)
        and file.at_hand(given.pytorch)
    ]
    if not files:
        print("skipped: no test file of PyTorch is at hand: set SHERD_PYTORCH_TESTS")
        sys.exit(EXIT_SKIPPED)
    with tempfile.TemporaryDirectory(prefix="sherd-pytorch-suite-") as logs:
        results = [(file, run_file(file, given, logs)) for file in files]
    print(tables.summary(results))
    if given.report:
        given.report.write_text(tables.report(results, known_failures()))
    if failed := failures(results):
        print(f"{len(failed)} failed that known_failures.txt does not list:")
        for file, test in failed:
            print(f"  {file.title} {test}")
        sys.exit(1)


if __name__ == "__main__":
    main()
