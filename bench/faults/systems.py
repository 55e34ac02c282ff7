# SPDX-License-Identifier: Apache-2.0
"""The systems that torchft_compare.py measures, each as a run that is
started, looked at again and again, struck by kills, and closed. Commits get
the time at which they are first seen here, the same way for both."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from commits import Commit, Journal

HERE = pathlib.Path(__file__).resolve().parent
END_S_MAX = 30  # For what was asked to end.
SPAN = ("layers", "width", "heads", "sequence", "batch")


def environment():
    return os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def stop(process):
    """Ends what one of these runs has started."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class TailedFile:
    """Whole lines that a writer appends; a file that was made anew is read from
    its start again."""

    def __init__(self, path):
        self.path, self.inode, self.offset = path, None, 0

    def lines(self):
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self.inode:
                    self.inode, self.offset = status.st_ino, 0
                if status.st_size == self.offset:
                    return []
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


class Run:
    def __init__(self, work, folder):
        self.work, self.folder = work, folder
        self.journal = Journal(commits=[[] for _ in range(work.replicas)])
        self.ends = {}  # By replica: what its final state hashes to.
        self.deaths = 0  # That nobody asked for.
        self.imports_s = []  # What a process needs until it has its libraries.

    def last_step(self, replica):
        commits = self.journal.commits[replica]
        return commits[-1].step if commits else 0

    def add(self, replica, step, cpu_s=None):
        """A committed step; those that are known already are not added."""
        if step > self.last_step(replica):
            commit = Commit(time.monotonic(), step, cpu_s)
            self.journal.commits[replica].append(commit)


class TorchftRun(Run):
    """A lighthouse and a process for each replica, which is started again here
    as soon as it has died."""

    def __init__(self, work, folder, limits):
        super().__init__(work, folder)
        self.limits, self.lives = limits, [0] * work.replicas
        self.journal.discards = [[] for _ in range(work.replicas)]
        self.lighthouse = self.python(
            ["--lighthouse", "--heartbeat-ms", str(limits["heartbeat_ms"]),
             "--join-ms", str(limits["join_ms"])],
            "lighthouse.log", stdout=subprocess.PIPE,
        )  # fmt: skip
        self.address = self.lighthouse.stdout.readline().decode().strip()
        self.processes = [None] * work.replicas
        self.files = [None] * work.replicas
        for replica in range(work.replicas):
            self.start(replica)

    def python(self, words, log, **more):
        with open(self.folder / log, "wb") as file:
            return subprocess.Popen(
                [self.work.torchft_python, "-W", "ignore",
                 str(HERE / "torchft_rank.py"), *words],
                stdin=subprocess.PIPE, stderr=file,
                **{"stdout": file} | more,
            )  # fmt: skip

    def start(self, replica):
        self.lives[replica] += 1
        name = f"replica-{replica}.life-{self.lives[replica]}"
        words = ["--journal", str(self.folder / f"{name}.jsonl")]
        words += ["--replica", str(replica), "--data", str(self.work.data)]
        words += ["--timeout-s", str(self.limits["timeout_s"])]
        for option in ("replicas", "steps", "lr", *SPAN):
            words += [f"--{option}", str(getattr(self.work, option))]
        self.processes[replica] = self.python(
            words, f"{name}.log",
            env=environment() | {"TORCHFT_LIGHTHOUSE": self.address},
        )  # fmt: skip
        self.files[replica] = TailedFile(self.folder / f"{name}.jsonl")

    def kill(self, replica):
        self.processes[replica].kill()
        self.processes[replica].wait()
        self.read()  # What it had written.
        self.start(replica)

    def look(self):
        self.read()
        for replica, process in enumerate(self.processes):
            if process.poll() is not None:
                self.deaths += 1
                self.start(replica)

    def read(self):
        for replica, file in enumerate(self.files):
            for record in file.lines():
                if record["kind"] == "commit":
                    cpu_s = processor_s(self.processes[replica].pid)
                    self.add(replica, record["step"], cpu_s)
                elif record["kind"] == "discard":
                    self.journal.discards[replica].append(time.monotonic())
                elif record["kind"] == "end":
                    self.ends[replica] = record["hash"]
                else:
                    self.imports_s.append(record["import_s"])

    def over(self):
        return len(self.ends) == self.work.replicas

    def close(self):
        for process in [*self.processes, self.lighthouse]:
            process.stdin.close()  # Which asks it to end.
        for process in [*self.processes, self.lighthouse]:
            stop(process)


def processor_s(pid):
    """That a process has computed; none: it is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return None
    words = status[status.rfind(")") :].split()
    return (int(words[12]) + int(words[13])) / os.sysconf("SC_CLK_TCK")


def descendants(pid):
    """Of a process, itself left out."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


class SherdRun(Run):
    """`sherd run --fault-tolerant`, which starts replicas again itself."""

    def __init__(self, work, folder):
        super().__init__(work, folder)
        train = self.program(work, folder)
        train += ["--data", str(work.data)]
        train += ["--steps", str(work.steps), "--lr", str(work.lr)]
        with open(folder / "sherd.log", "wb") as log:
            self.process = subprocess.Popen(
                [work.sherd, "run", "--fault-tolerant", "--no-bind",
                 "--replicas", str(work.replicas),
                 "--samples-per-replica", str(work.batch),
                 "--run-dir", str(folder / "coordinator"), "--", *train],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.environment(work),
            )  # fmt: skip
        self.files = [
            TailedFile(folder / "run" / f"replica-{r}" / "metrics.jsonl")
            for r in range(work.replicas)
        ]

        self.pids = [None] * work.replicas

    def program(self, work, folder):
        train = [work.sherd, "train", "--run", str(folder / "run")]
        for option in SPAN:
            name = "seq" if option == "sequence" else option
            train += [f"--{name}", str(getattr(work, option))]
        train += ["--clip", "0", "--strategy", "no_shard", "--eval-every", "0"]
        train += ["--sample-tokens", "0", "--quiet", "--save-every", "0"]
        return [*train, "--vocab", "256"]

    def environment(self, _work):
        return environment()

    def kill(self, replica):
        os.kill(self.rank_of(replica), signal.SIGKILL)
        self.look()
        self.pids[replica] = None

    def rank_of(self, replica):
        if self.pids[replica] is None:
            self.pids[replica] = self.found(replica)
        if self.pids[replica] is None:
            sys.exit(f"expected a process of replica {replica}, found none")
        return self.pids[replica]

    def found(self, replica):
        mine = f"SHERD_REPLICA={replica}".encode()
        for pid in descendants(self.process.pid):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if mine in variables.split(b"\0"):
                return pid
        return None

    def look(self):
        for replica, file in enumerate(self.files):
            for record in file.lines():
                pid = self.pids[replica] = self.pids[replica] or self.found(replica)
                last = record["step"] == self.work.steps
                # The last step's time would be that of the validation, too.
                known = pid is not None and not last
                self.add(replica, record["step"], processor_s(pid) if known else None)
                if last:
                    # The loss over the validation rows, to the last bit, or a
                    # hash of the parameters.
                    end = record.get("val_loss", record.get("hash"))
                    self.ends[replica] = repr(end)

    def over(self):
        return self.process.poll() is not None

    def close(self):
        stop(self.process)
        if self.process.returncode != 0:
            self.deaths += 1


class SherdPythonRun(SherdRun):
    """The same with sherd.ft.Session."""

    def program(self, work, folder):
        train = [work.sherd_python, "-W", "ignore", str(HERE / "sherd_rank.py")]
        train += ["--run", str(folder / "run")]
        for option in SPAN:
            train += [f"--{option}", str(getattr(work, option))]
        return train

    def environment(self, work):
        package = str(pathlib.Path(work.sherd).parent / "python")
        known = os.environ.get("PYTHONPATH")
        path = os.pathsep.join([package, *([known] if known else [])])
        return environment() | {"PYTHONPATH": path}
