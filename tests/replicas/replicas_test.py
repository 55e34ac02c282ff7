#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replicas of LibTorch ranks train as plain hybrid sharding does, whoever dies.

  replicas_test.py CASE SHERD SCRATCH

CASE is undisturbed, coordinator_killed, rank_killed, all_killed, told_to_end, two_jobs,
changed_options, fp16 or five_ranks; SHERD the built command; SCRATCH a folder that is replaced. Trains a small model as two replicas of two
ranks, once by `--replicate 2` and once fault-tolerant. As long as the same samples
are in each step, every number must be the same to the last bit.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

TIMEOUT_S = 140
STEPS = 40
# A step takes 20 ms on a fast machine, and this script may stand still for seconds on a busy one.
STEPS_DISTURBED = 200  # So that the fault comes before the end.
STEPS_TO_COME_BACK = 300  # In which a replica is started again and catches up.
GONE = (FileNotFoundError, ProcessLookupError)  # It has ended meanwhile.
REPLICAS = 2
SAMPLES = 16  # Of each replica.
JOB = (
    "train", "--layers", "2", "--width", "160",
    "--heads", "2", "--seq", "16", "--dropout", "0.1", "--sample-tokens", "0", "--data",
    str(pathlib.Path(__file__).resolve().parent.parent.parent / "LICENSE"),
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


def records(folder):
    """The whole lines of a run's metrics, by step: the last life's."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return {record["step"]: record for record in map(json.loads, lines)}


def wait_for(what, found):
    """Until found() is something, which is returned."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.005)
    sys.exit(f"expected {what} within {TIMEOUT_S} s")


def children_of(pid):
    """Of its threads that have not ended meanwhile."""
    children = []
    with contextlib.suppress(*GONE):
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(*GONE):
                children += (task / "children").read_text().split()
    return children


def processes_below(pid):
    """[(pid, words)] of all descendants."""
    found = []
    for child in children_of(pid):
        with contextlib.suppress(*GONE):
            words = pathlib.Path(f"/proc/{child}/cmdline").read_text().split("\0")
            found += [(int(child), words), *processes_below(child)]
    return found


def environment_of(pid):
    text = pathlib.Path(f"/proc/{pid}/environ").read_text()
    return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)


def coordinator_below(pid):
    below = [child for child, words in processes_below(pid) if words[0].endswith("sherd-coordinate")]
    return below[0] if below else None


def rank_below(pid, replica, rank):
    for child, words in processes_below(pid):
        has = environment_of(child)
        if has.get("SHERD_REPLICA") == replica and has.get("RANK") == rank:
            return child
    return None


def plain(sherd, run, steps=STEPS, more=()):
    ranks = 2 * REPLICAS
    command = [sherd, "run", "-n", str(ranks), "--", sherd, *JOB, "--run", str(run)]
    command += ["--steps", str(steps), *more]
    command += ["--replicate", str(REPLICAS), "--batch", str(REPLICAS * SAMPLES)]
    subprocess.run(command, env=environment(), check=True, timeout=TIMEOUT_S)
    return records(run)


def command_of(
    sherd, run, samples, more, steps, *, batch=SAMPLES, options=(), count=REPLICAS
):
    command = [sherd, "run", "--fault-tolerant", "--replicas", str(count)]
    # On a busy host nobody is lost for being late.
    command += ["--ranks-per-replica", "2", "--dead-after", "5", *samples, *options, "--"]
    command += [sherd, *JOB, "--batch", str(batch), "--run", str(run), *more]
    return [*command, "--steps", str(steps)]


def expect_refused(command, texts):
    """As wrong usage, so that nothing is started again."""
    done = subprocess.run(
        command,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    missing = [text for text in texts if text not in done.stdout]
    if done.returncode != 2 or missing:
        sys.exit(f"expected 2 and {missing}, found {done.returncode}: {done.stdout}")


def fault_tolerant(
    sherd, run, disturb, samples, more=(), steps=STEPS, *, batch=SAMPLES, options=(), ends=0
):
    """The records of each replica; disturb(launcher's pid, folders) meanwhile."""
    command = command_of(sherd, run, samples, more, steps, batch=batch, options=options)
    folders = [run / f"replica-{replica}" for replica in range(REPLICAS)]
    launcher = subprocess.Popen(command, env=environment(), start_new_session=True)
    try:
        disturb(launcher.pid, folders)
        status = launcher.wait(timeout=TIMEOUT_S)
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait()
    if status != ends:
        sys.exit(f"expected the run to end with {ends}, found {status}")
    return [records(folder) for folder in folders]


def expect_same(replicas, whole):
    """Each replica's samples are a part of the other run's."""
    for step, record in whole.items():
        parts = [replica[step] for replica in replicas]
        values = [each["grad_norm"] for each in [*parts, record]]
        if len(set(values)) != 1:
            sys.exit(f"step {step}: expected one norm, found {values}")
        # Means over other numbers of ranks: rounded otherwise.
        for name in ("loss", "val_loss") if "val_loss" in record else ("loss",):
            mean = sum(part[name] for part in parts) / len(parts)
            if abs(mean - record[name]) > 1e-6:
                sys.exit(f"step {step}: expected {name} {record[name]}, found {mean}")


def undisturbed(sherd, scratch):
    whole = plain(sherd, scratch / "plain")
    samples = ("--samples-per-replica", str(SAMPLES))
    replicas = fault_tolerant(sherd, scratch / "ft", lambda *_: None, samples)
    assert len(whole) == STEPS
    expect_same(replicas, whole)


def coordinator_killed(sherd, scratch):
    """First alone, then with its log: its replicas remember where the run was."""
    steps = STEPS_DISTURBED
    whole = plain(sherd, scratch / "plain", steps)
    run = scratch / "ft"

    def signal_coordinator(launcher, number):
        coordinator = coordinator_below(launcher)
        if coordinator is None:
            sys.exit("expected a coordinator, found none")
        os.kill(coordinator, number)

    def disturb(launcher, folders):
        wait_for("five steps", lambda: 5 in records(folders[0]))
        signal_coordinator(launcher, signal.SIGKILL)
        last = max(records(folders[0]))
        wait_for("more steps", lambda: max(records(folders[0])) > last + 2)
        # It would rescue what it has of a log that is gone.
        signal_coordinator(launcher, signal.SIGSTOP)
        logs = list(run.glob("coordinator.db*"))
        if not logs:
            sys.exit(f"expected a log in {run}, found none")
        for log in logs:
            log.unlink()
        signal_coordinator(launcher, signal.SIGKILL)

    # Nobody goes on alone.
    samples = ("--samples-per-replica", str(SAMPLES), "--replicas-min", "2")
    options = ("--run-dir", str(run), "--recover-from-replicas")
    expect_same(
        fault_tolerant(sherd, run, disturb, samples, steps=steps, options=options), whole
    )


def rank_killed(sherd, scratch):
    """What it did not bring is trained later, by others: in another order."""
    steps = STEPS_TO_COME_BACK
    whole = plain(sherd, scratch / "plain", steps)

    def disturb(launcher, folders):
        wait_for("five steps", lambda: 5 in records(folders[0]))
        rank = rank_below(launcher, "1", "1")
        if rank is None:
            sys.exit("expected rank 1 of replica 1, found none")
        os.kill(rank, signal.SIGKILL)

    samples = ("--global-batch", str(REPLICAS * SAMPLES))
    replicas = fault_tolerant(sherd, scratch / "ft", disturb, samples, steps=steps)
    last = [replica[max(replica)] for replica in replicas]
    for replica in replicas:
        if max(replica) != steps:
            sys.exit(f"expected {steps} steps, found {max(replica)}")
    for step in set(replicas[0]) & set(replicas[1]):
        norms = [replica[step]["grad_norm"] for replica in replicas]
        if norms[0] != norms[1]:
            sys.exit(f"step {step}: expected equal norms, found {norms}")
    if abs(last[0]["val_loss"] - whole[steps]["val_loss"]) > 0.2:
        sys.exit(f"expected a loss as {whole[steps]}, found {last[0]}")


def all_killed(sherd, scratch):
    """F16: the run goes on from the disk, and no number tells."""
    steps = STEPS_DISTURBED
    whole = plain(sherd, scratch / "plain", steps)
    run = scratch / "ft"

    def disturb(launcher, folders):
        wait_for("a checkpoint", (run / "checkpoints" / "step-10").exists)
        ranks = [pid for pid, _ in processes_below(launcher) if "RANK" in environment_of(pid)]
        if len(ranks) != 2 * REPLICAS:
            sys.exit(f"expected {2 * REPLICAS} ranks, found {len(ranks)}")
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # With its sibling.
                os.kill(rank, signal.SIGKILL)

    # Nobody goes on alone.
    samples = ("--samples-per-replica", str(SAMPLES), "--replicas-min", "2")
    saves = ("--save-every", "10")
    expect_same(fault_tolerant(sherd, run, disturb, samples, saves, steps), whole)


def told_to_end(sherd, scratch):
    """Who is told to end saves what it holds, by whatever rank, and without a coordinator."""
    run = scratch / "ft"
    checkpoints = run / "checkpoints"
    samples = ("--samples-per-replica", str(SAMPLES), "--replicas-min", "1")
    options = ("--run-dir", str(run), "--leave-timeout", "1")
    saves = ("--save-every", "1000000")  # In its own time none is due.

    def saved():
        return {int(path.name[5:]) for path in checkpoints.glob("step-*")}

    def disturb(launcher, folders):
        wait_for("five steps", lambda: 5 in records(folders[0]))
        os.kill(rank_below(launcher, "1", "1"), signal.SIGTERM)
        wait_for("a checkpoint of replica 1", saved)
        last = max(records(folders[0]))
        wait_for("more steps", lambda: max(records(folders[0])) > last + 5)
        os.kill(coordinator_below(launcher), signal.SIGSTOP)
        os.kill(launcher, signal.SIGTERM)

    steps, ended = 1000000, 128 + signal.SIGTERM
    replicas = fault_tolerant(
        sherd, run, disturb, samples, saves, steps, options=options, ends=ended
    )
    last = max(max(replica) for replica in replicas)
    if max(saved()) not in (last, last + 1):  # One may hold a step that it did not record.
        sys.exit(f"expected a checkpoint of step {last}, found {sorted(saved())}")

    def disturb_again(launcher, folders):
        wait_for("more steps", lambda: max(records(folders[0])) > last + 1)
        os.kill(launcher, signal.SIGUSR1)

    again = fault_tolerant(
        sherd, run, disturb_again, samples, saves, steps, options=options, ends=75
    )
    # Who is there first does not wait for the other one.
    new = set().union(*again) - set().union(*replicas)
    if min(new) not in (last + 1, last + 2):
        sys.exit(f"expected to go on after step {last}, found {sorted(new)}")


def two_jobs(sherd, scratch):
    """The second one on the same --run is refused, and disturbs the first one in nothing."""
    run = scratch / "ft"
    samples = ("--samples-per-replica", str(SAMPLES), "--replicas-min", "2")
    steps = 1000000
    once = ("--save-every", str(steps))  # The second one has nothing to load.

    def disturb(launcher, folders):
        wait_for("five steps", lambda: 5 in records(folders[0]))
        # Also a replica of a number that the first job has none of.
        command = command_of(sherd, run, samples, (*once, "--lr", "0.5"), steps, count=3)
        expect_refused(command, [f"cannot save to {run}/checkpoints: another run does"])
        last = max(records(folders[0]))
        wait_for("more steps", lambda: max(records(folders[0])) > last)
        os.kill(launcher, signal.SIGUSR1)

    replicas = fault_tolerant(sherd, run, disturb, samples, once, steps, ends=75)
    for replica in replicas:
        if sorted(replica) != list(range(1, len(replica) + 1)):
            sys.exit(f"expected each step, found {sorted(replica)}")
    if any((run / "replica-2").glob("*")):
        sys.exit("expected nothing of the second job")
    whole = plain(sherd, scratch / "plain", steps, ("--stop-at", "10"))
    del whole[10]  # It has a validation, since it is the last one.
    expect_same(replicas, whole)


def changed_options(sherd, scratch):
    """The log is of a run with other options, which are named, or not that of the checkpoints."""
    run = scratch / "ft"
    samples = ("--samples-per-replica", str(SAMPLES))
    options = ("--run-dir", str(run))
    fault_tolerant(sherd, run, lambda *_: None, samples, steps=5, options=options)
    command = command_of(sherd, run, samples, ("--lr", "0.5"), 7, options=options)
    texts = ("of the run in the log", "step-5 is of a run with --steps=5 --lr=")
    expect_refused(command, texts)
    other_log = ("--run-dir", str(scratch / "other"))
    command = command_of(sherd, run, samples, (), 5, options=other_log)
    expect_refused(command, ["expected the log of the run that has made step 5"])


def fp16(sherd, scratch):
    """A step in which gradients of some rank overflow is skipped by every replica."""
    samples = ("--samples-per-replica", "2")  # Few, so that gradients are large.
    more = ("--dtype", "fp16")
    replicas = fault_tolerant(
        sherd, scratch / "ft", lambda *_: None, samples, more, steps=8, batch=2
    )
    fields = ("grad_norm", "loss_scale", "skipped")
    first, second = (
        [[record[field] for field in fields] for record in replica.values()]
        for replica in replicas
    )
    if first != second:
        sys.exit(f"expected the same steps of both replicas, found {first}, {second}")
    skipped = [skips for _, _, skips in first]
    if not any(skipped) or first[-1][1] != 65536 / 2 ** sum(skipped[:-1]):
        sys.exit(f"expected a scale that is halved by some steps, found {first}")


def five_ranks(sherd, scratch):
    """A number of ranks that does not divide the batch of runs without replicas."""
    command = [sherd, "run", "--fault-tolerant", "--replicas", "1", "--ranks-per-replica", "5"]
    command += ["--samples-per-replica", "5", "--dead-after", "5", "--", sherd, *JOB]
    command += ["--run", str(scratch / "run"), "--steps", "2"]
    subprocess.run(command, env=environment(), check=True, timeout=TIMEOUT_S)
    steps = records(scratch / "run" / "replica-0")
    if sorted(steps) != [1, 2] or "val_loss" not in steps[2]:
        sys.exit(f"expected two steps and a validation, found {steps}")


def main():
    all_cases = (
        undisturbed, coordinator_killed, rank_killed, all_killed, told_to_end,
        two_jobs, changed_options, fp16, five_ranks,
    )  # fmt: skip
    cases = {each.__name__: each for each in all_cases}
    if len(sys.argv) != 4 or sys.argv[1] not in cases:
        sys.exit(__doc__)
    scratch = pathlib.Path(sys.argv[3])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    cases[sys.argv[1]](sys.argv[2], scratch)


if __name__ == "__main__":
    main()
