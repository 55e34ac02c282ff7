#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the tests: plants one fault at a time in the sources, builds the test
programs that should find it, runs them, and says which faults survived.

Usage: scripts/mutate.py [OPTIONS]

  --list          print the faults and end
  --check         check that the text of each fault occurs exactly once, and end
  --baseline      run the named tests without any fault, which must all pass, and end
  --only REGEX    take only faults whose id or part matches
  --tree DIR      the sources (default: the tree of this script)
  --build DIR     a configured build folder (default: build/release of the tree)
  --report FILE   JSON lines, one per fault (default: mutations.jsonl in the build
                  folder); a fault that the file has is not planted again, so that
                  an interrupted run can be continued
  --limit S       seconds for one run of a test program (default 120)
  --jobs N        processes that ninja starts (default: what ninja chooses)
  --table FILE    the faults (default: scripts/mutations.txt)

The tree must be a git repository without uncommitted changes. Each file is restored
before the next fault, also after an interrupt. Exits with 1 when a fault survived,
did not compile or has no test, with 2 when it cannot begin.

The table: a fault begins with its id in brackets. `part:` and `what:` describe it.
Each `test:` names a test program and a gtest filter, cheap ones first. `at:` names
the file. The lines below it that begin with `- ` are the text to find, which the file
holds exactly once; those that begin with `+ ` take its place.
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import NamedTuple


FAULT_OBJECT = "fault.o"  # In the build folder.
FAULTY = ".fault"  # The end of the name of a program with the fault.


class Place(NamedTuple):
    path: str
    find: str
    replace: str


class Test(NamedTuple):
    program: str
    filter: str


class Fault(NamedTuple):
    id: str
    part: str
    what: str
    tests: tuple[Test, ...]
    place: Place


class Outcome(NamedTuple):
    result: str  # found, survived, not compiled, no test, no place
    by: str = ""


class Refused(Exception):
    """The run cannot begin, or cannot go on."""


# ---------------------------------------------------------------------------
# The table.


def parse_fault(lines):
    """One fault from its lines, the first of which is its id in brackets."""
    name = lines[0].strip()[1:-1]
    fields = {"part": "", "what": "", "at": ""}
    texts = {"-": [], "+": []}
    tests = []
    for line in lines[1:]:
        if line.startswith(("- ", "+ ")):
            if not fields["at"]:
                raise Refused(f"{name}: expected `at:` before `{line}`")
            texts[line[0]].append(line[2:])
            continue
        key, colon, value = line.partition(":")
        if key == "test" and colon:
            program, _, test_filter = value.strip().partition(" ")
            tests.append(Test(program, test_filter.strip()))
        elif colon and fields.get(key) == "":
            fields[key] = value.strip()
        else:
            raise Refused(f"{name}: expected a field, once, found `{line}`")
    if not (all(fields.values()) and tests and texts["-"]):
        raise Refused(f"{name}: expected part, what, test, at and text to find")
    return Fault(
        name, fields["part"], fields["what"], tuple(tests),
        Place(fields["at"], "\n".join(texts["-"]), "\n".join(texts["+"])))


def parse_table(text):
    blocks = []
    for line in text.splitlines():
        if line.startswith("["):
            blocks.append([line])
        elif line.strip() and not line.startswith("#"):
            if not blocks:
                raise Refused(f"expected the id of a fault, found `{line}`")
            blocks[-1].append(line)
    faults = [parse_fault(block) for block in blocks]
    ids = [fault.id for fault in faults]
    for name in ids:
        if ids.count(name) > 1:
            raise Refused(f"expected each id once, found {name} again")
    return faults


def select(faults, pattern):
    return [fault for fault in faults
            if re.search(pattern, fault.id) or re.search(pattern, fault.part)]


# ---------------------------------------------------------------------------
# The sources.


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def misplaced(tree, place):
    """Why a tree does not have a place, or an empty text when it has it."""
    path = os.path.join(tree, place.path)
    if not os.path.isfile(path):
        return f"{place.path} is not there"
    count = read(path).count(place.find)
    return "" if count == 1 else f"{place.path} has the text {count} times"


class Planted:
    """A file with a fault, for the time of a `with` block. Its time of change is
    restored, too: ninja has seen nothing of the fault."""

    def __init__(self, tree, place):
        self.path = os.path.join(tree, place.path)
        self.place = place

    def __enter__(self):
        self.before = read(self.path)
        self.times = os.stat(self.path)
        try:
            write(self.path, self.before.replace(
                self.place.find, self.place.replace))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        # A second interrupt waits until the file is whole.
        held = signal.pthread_sigmask(
            signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            write(self.path, self.before)
            os.utime(self.path, ns=(self.times.st_atime_ns, self.times.st_mtime_ns))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


def git(tree, *arguments):
    done = subprocess.run(["git", "-C", tree, *arguments], text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        raise Refused(f"git: {done.stderr.strip()}")
    return done.stdout.strip()


def clean_commit(tree):
    """The commit of a tree without changes; faults must not mix with them."""
    changed = git(tree, "status", "--porcelain", "--untracked-files=no")
    if changed:
        raise Refused("expected a tree without uncommitted changes, found\n"
                      f"{changed}\n(git checkout FILE restores one)")
    return git(tree, "rev-parse", "HEAD")


# ---------------------------------------------------------------------------
# Building and running.


def ninja(build, *arguments, jobs=None):
    limit = [f"-j{jobs}"] if jobs else []
    return subprocess.run(["ninja", "-C", build, *limit, *arguments], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          check=False)


def targets_of(build):
    done = ninja(build, "-t", "targets", "all")
    if done.returncode != 0:
        raise Refused(f"expected a build folder of ninja, found {build}:\n"
                      f"{done.stdout.strip()}")
    return {line.split(":")[0] for line in done.stdout.splitlines() if ":" in line}


def programs_of(fault, targets):
    """The tests that this tree builds."""
    return [test for test in fault.tests if test.program in targets]


def failed_tests(output):
    """Names of the failed tests. That of a crashed program is the last begun."""
    failed = re.findall(r"^\[  FAILED  \] ([\w/.]+\.[\w/]+)", output, re.MULTILINE)
    if failed:
        return list(dict.fromkeys(failed))
    begun = re.findall(r"^\[ RUN      \] ([\w/.]+)", output, re.MULTILINE)
    ended = re.findall(r"^\[ +(?:OK|SKIPPED) +\] ([\w/.]+)", output, re.MULTILINE)
    return [begun[-1]] if begun and begun[-1] not in ended else []


def run_test(build, program, test_filter, limit):
    """(exit status or None when it took too long, output). The program has its own
    process group, which ends with it."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
            [os.path.join(build, "tests", program), f"--gtest_filter={test_filter}",
             "--gtest_color=no", "--gtest_fail_fast"],
            cwd=build, env=environment, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            end_group(process)
            return None, process.communicate()[0]
        finally:
            end_group(process)


def end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def judge_run(program, status, output):
    """What one run says: an outcome, or None when it found nothing."""
    if "0 tests from 0 test suites" in output:
        return Outcome("no test", f"{program}: its filter matches nothing")
    if status == 0:
        return None
    names = failed_tests(output)
    how = " (took too long)" if status is None else ""
    return Outcome("found", f"{program}: {', '.join(names) or 'its end'}{how}")


def compile_command(build, source):
    """How one source file is compiled alone, to FAULT_OBJECT. A file of a unity build
    has the flags of its unity. None for what is no source file of its own."""
    path = os.path.join(build, "compile_commands.json")
    for entry in json.loads(read(path)) if os.path.exists(path) else []:
        file = entry["file"]
        unity = "/Unity/" in file and f'"{source}"' in read(file)
        if file == source or unity:
            command = entry["command"].replace(file, source)
            return re.sub(r" -o \S+ ", f" -o {FAULT_OBJECT} ", command)
    return None


def link_command(build, program):
    """How a program is linked so that what FAULT_OBJECT defines comes before what the
    libraries define."""
    lines = ninja(build, "-t", "commands", f"tests/{program}").stdout.splitlines()
    first = re.sub(r"^(: && \S+)", rf"\1 -Wl,-z,muldefs {FAULT_OBJECT}", lines[-1])
    return first.replace(f" -o tests/{program} ", f" -o tests/{program}{FAULTY} ")


def run_command(build, command):
    return subprocess.run(command, shell=True, cwd=build, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def not_compiled(output):
    errors = re.findall(r"^.*\berror\b.*$", output, re.MULTILINE)
    return Outcome("not compiled", (errors or [output[-300:]])[0].strip())


def try_programs(build, programs, limit, make):
    """The outcome of a fault over its programs, in order; `make` gives the name of a
    program with the fault, or an Outcome."""
    missing = None
    ran = False
    for program, test_filter in programs:
        made = make(program)
        if isinstance(made, Outcome):
            return made
        said = judge_run(program, *run_test(build, made, test_filter, limit))
        if said and said.result == "found":
            return said
        missing = missing or said
        ran = ran or said is None
    return Outcome("survived") if ran else missing


def try_alone(build, command, programs, limit):
    """Compiles the file of the fault alone and links the programs with it, so that
    the objects of the build stay as they are."""
    done = run_command(build, command)
    if done.returncode != 0:
        return not_compiled(done.stdout)

    def make(program):
        linked = run_command(build, link_command(build, program))
        faulty = program + FAULTY
        return faulty if linked.returncode == 0 else not_compiled(linked.stdout)

    try:
        return try_programs(build, programs, limit, make)
    finally:
        for path in [FAULT_OBJECT] + [f"tests/{p}{FAULTY}" for p, _ in programs]:
            with contextlib.suppress(FileNotFoundError):
                os.remove(os.path.join(build, path))


def try_whole(build, source, programs, limit, jobs):
    """Builds all that depends on the file of the fault, as headers need it."""
    os.utime(source)
    done = ninja(build, *(program for program, _ in programs), jobs=jobs)
    if done.returncode != 0:
        return not_compiled(done.stdout)
    return try_programs(build, programs, limit, lambda program: program)


def try_fault(tree, build, place, programs, limit, jobs):
    """The outcome of a fault at its place."""
    source = os.path.join(tree, place.path)
    command = compile_command(build, source)
    if command:
        with Planted(tree, place):
            return try_alone(build, command, programs, limit)
    try:
        with Planted(tree, place):
            outcome = try_whole(build, source, programs, limit, jobs)
    finally:
        os.utime(source)  # What ninja has built with the fault is made again.
    build_programs(build, {program for program, _ in programs}, jobs)
    return outcome


def build_programs(build, programs, jobs):
    done = ninja(build, *sorted(programs), jobs=jobs)
    if done.returncode != 0:
        raise Refused(f"expected a tree that builds, found\n{done.stdout[-2000:]}")


# ---------------------------------------------------------------------------
# The report.


def read_report(path, commit):
    """Outcomes by id of an earlier run of the same commit. A last line that an
    interrupt has cut is left out."""
    outcomes = {}
    if not os.path.exists(path):
        return outcomes
    for line in read(path).splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["commit"] != commit:
            raise Refused(f"{path} is of commit {record['commit'][:10]}, the tree is "
                          f"at {commit[:10]}: name another --report")
        outcomes[record["id"]] = Outcome(record["result"], record["by"])
    return outcomes


def append_report(path, commit, fault, outcome, seconds):
    before = read(path) if os.path.exists(path) else ""
    cut = before and not before.endswith("\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write(("\n" if cut else "") + json.dumps({
            "id": fault.id, "part": fault.part, "result": outcome.result,
            "by": outcome.by, "seconds": round(seconds, 1), "commit": commit}) + "\n")


def summary(faults, outcomes):
    """The lines at the end: what was not found, counts by part, the total."""
    lines = []
    for fault in faults:
        outcome = outcomes[fault.id]
        if outcome.result != "found":
            lines.append(f"{outcome.result}: {fault.id}: {fault.what} {outcome.by}".rstrip())
    counted = [fault for fault in faults
               if outcomes[fault.id].result in ("found", "survived")]
    for part in sorted({fault.part for fault in counted}):
        of_part = [fault for fault in counted if fault.part == part]
        found = sum(outcomes[fault.id].result == "found" for fault in of_part)
        lines.append(f"{part}: {found} of {len(of_part)}")
    found = sum(outcomes[fault.id].result == "found" for fault in counted)
    share = 100.0 * found / len(counted) if counted else 0.0
    lines.append(f"found {found} of {len(counted)} faults, {share:.1f} per cent")
    return lines


# ---------------------------------------------------------------------------
# Commands.


def check(tree, faults):
    wrong = 0
    for fault in faults:
        why = misplaced(tree, fault.place)
        if not why and fault.place.find == fault.place.replace:
            why = "changes nothing"
        if why:
            wrong += 1
            print(f"{fault.id}: {why}")
    print(f"{len(faults) - wrong} of {len(faults)} faults have their place")
    return 1 if wrong else 0


def baseline(build, faults, limit, jobs):
    targets = targets_of(build)
    tests = list(dict.fromkeys(
        test for fault in faults for test in programs_of(fault, targets)))
    build_programs(build, {program for program, _ in tests}, jobs)
    wrong = 0
    for program, test_filter in tests:
        said = judge_run(program, *run_test(build, program, test_filter, limit))
        if said:
            wrong += said.result == "found"
            print(f"{program} {test_filter}: {said.result}: {said.by}", flush=True)
    print(f"{wrong} of {len(tests)} runs fail without a fault")
    return 1 if wrong else 0


def plant_all(tree, build, faults, report, limit, jobs):
    commit = clean_commit(tree)
    targets = targets_of(build)
    outcomes = read_report(report, commit)
    build_programs(build, {program for fault in faults if fault.id not in outcomes
                           for program, _ in programs_of(fault, targets)}, jobs)
    for number, fault in enumerate(faults, 1):
        if fault.id in outcomes:
            continue
        began = time.monotonic()
        why = misplaced(tree, fault.place)
        programs = programs_of(fault, targets)
        if why:
            outcome = Outcome("no place", why)
        elif not programs:
            outcome = Outcome("no test", "this build has none of its programs")
        else:
            outcome = try_fault(
                tree, build, fault.place, programs, limit, jobs)
        seconds = time.monotonic() - began
        outcomes[fault.id] = outcome
        append_report(report, commit, fault, outcome, seconds)
        print(f"[{number}/{len(faults)}] {fault.id}: {outcome.result} "
              f"{outcome.by} ({seconds:.0f} s)", flush=True)
    print("\n".join(summary(faults, outcomes)))
    return 0 if all(outcomes[f.id].result == "found" for f in faults) else 1


def parse_arguments(arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--baseline", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--tree", default=os.path.dirname(here))
    parser.add_argument("--build")
    parser.add_argument("--report")
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--table", default=os.path.join(here, "mutations.txt"))
    chosen = parser.parse_args(arguments)
    chosen.tree = os.path.abspath(chosen.tree)
    chosen.build = os.path.abspath(
        chosen.build or os.path.join(chosen.tree, "build", "release"))
    chosen.report = chosen.report or os.path.join(chosen.build, "mutations.jsonl")
    return chosen


def stop(*_):
    raise KeyboardInterrupt


def main(arguments):
    chosen = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, stop)
    try:
        faults = select(parse_table(read(chosen.table)), chosen.only)
        if not faults:
            raise Refused(f"expected faults that match {chosen.only}, found none")
        if chosen.list:
            for fault in faults:
                print(f"{fault.id} ({fault.part}): {fault.what}")
            return 0
        if chosen.check:
            return check(chosen.tree, faults)
        if chosen.baseline:
            return baseline(chosen.build, faults, chosen.limit, chosen.jobs)
        return plant_all(
            chosen.tree, chosen.build, faults, chosen.report, chosen.limit,
            chosen.jobs)
    except Refused as why:
        print(f"mutate: {why}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mutate: interrupted; the same command goes on", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
