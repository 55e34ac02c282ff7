#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of one of PyTorch's test files, each in a process of its own.

  worker.py JSON

JSON is one object: "file" (a path) or "module" (a dotted name), "folders" to put
on sys.path, "adapters" (modules beside this one whose install() is called before
the tests are imported), "limit_s" for each test, "logs" (a folder), "tests",
"of_file" and "without", patterns of tests, of which those are run that the first two
have and the third has not, and "reasons", pairs of a pattern of tests that are not
applicable and why.

Prints one JSON object a line for each test: "test", "outcome" ("passed", "failed"
or "not applicable"), "why" and "seconds".

PyTorch and the test file are imported once. Each test is then run in a forked
child, which leads a process group; its ranks are forked from it in turn. Whatever
is left of the group once the test has ended, or run out of time, is killed.
"""

import fnmatch
import importlib
import importlib.util
import json
import os
import pathlib
import select
import signal
import sys
import time
import traceback
import unittest

MEGABYTE = 1 << 20
NOT_APPLICABLE = "not applicable"


def load(job):
    """The test file as a module, once the adapters are in place."""
    here = str(pathlib.Path(__file__).resolve().parent)
    sys.path[:0] = [here, *job["folders"]]
    for name in job["adapters"]:
        importlib.import_module(name).install()
    if "module" in job:
        return importlib.import_module(job["module"])
    path = pathlib.Path(job["file"])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def tests_of(suite):
    """The single tests of a unittest suite, in its order."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from tests_of(item)
        else:
            yield item


def name_of(test):
    return f"{type(test).__name__}.{test.id().rsplit('.', 1)[1]}"


def outcome_of(result):
    if result.failures or result.errors:
        return "failed", (result.failures + result.errors)[0][1]
    if result.skipped:
        return NOT_APPLICABLE, f"PyTorch skips it: {result.skipped[0][1]}"
    if result.expectedFailures:
        return NOT_APPLICABLE, "PyTorch expects it to fail"
    if result.testsRun == 0:
        return "failed", "unittest ran no test"
    return "passed", ""


def in_child(test, log, pipe):
    """Never returns."""
    try:
        os.setpgid(0, 0)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        result = unittest.TestResult()
        unittest.TestSuite([test]).run(result)
        outcome, why = outcome_of(result)
    except BaseException:
        outcome, why = "failed", traceback.format_exc()
    sys.stdout.flush()
    os.write(pipe, json.dumps([outcome, why[-30000:]]).encode())
    os._exit(0)


def read_until(pipe, deadline):
    """What the child wrote, or None when it is late. The ranks hold the pipe's
    other end too, so its end is not waited for."""
    said = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            return None
        chunk = os.read(pipe, MEGABYTE)
        said += chunk
        try:
            return json.loads(said)
        except ValueError:
            if not chunk:
                return ["failed", "the process of the test ended without a word"]


def end_group(child):
    """Ranks that a test left behind end with it."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)


def run(test, job):
    name = name_of(test)
    log = pathlib.Path(job["logs"]) / f"{name}.log"
    ours, theirs = os.pipe()
    sys.stdout.flush()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(ours)
        in_child(test, log, theirs)
    os.close(theirs)
    said = read_until(ours, started + job["limit_s"])
    os.close(ours)
    end_group(child)
    outcome, why = said or ["failed", f"not ended after {job['limit_s']} s"]
    seconds = round(time.monotonic() - started, 1)
    return {"test": name, "outcome": outcome, "why": why, "seconds": seconds}


def any_of(patterns, name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def row_of(test, job):
    name = name_of(test)
    for pattern, why in job["reasons"]:
        if fnmatch.fnmatchcase(name, pattern):
            return {"test": name, "outcome": NOT_APPLICABLE, "why": why, "seconds": 0}
    return run(test, job)


def main():
    job = json.loads(sys.argv[1])
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(int(job["limit_s"] * 0.9))
    module = load(job)
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    for test in tests_of(suite):
        name = name_of(test)
        wanted = any_of(job["tests"], name) and any_of(job["of_file"], name)
        if wanted and not any_of(job["without"], name):
            print(json.dumps(row_of(test, job)), flush=True)


if __name__ == "__main__":
    main()
