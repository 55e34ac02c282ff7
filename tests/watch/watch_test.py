#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who watches a run sees what happens, also with programs of others.

  watch_test.py CASE SHERD SCRATCH

  readers  TensorBoard's reader, Python's csv and pandas read the metrics of a run
           that went back to a checkpoint, and find those of metrics.jsonl
  top      `sherd top` shows a running job and says when nothing runs

Exit status 77, a counted skip, where TensorBoard or pandas is not installed
(scripts/setup puts them into build/clients, where it can).
"""

import csv
import io
import json
import math
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import sys
import time

from watched_job import (
    BATCH, EXIT_SKIPPED, LAYERS, MODEL, ROOT, SEQUENCE, VALIDATE, WIDTH, answer_to, call,
    expect, job, whole_lines,
)  # fmt: skip

VOCABULARY = 256  # Bytes.
PEAK_FLOPS = 1e9
sys.path.insert(0, str(ROOT / "build" / "clients"))


# ---- readers ----


def trained(sherd, run):
    """A run that has taken steps 9 and 10 a second time; its metrics by step."""
    train = (
        sherd, "run", "-n", 2, "--", sherd, "train", *MODEL, "--batch", BATCH,
        "--steps", 14, "--save-every", 4, "--keep", 0, "--run", run,
        "--peak-flops", PEAK_FLOPS, "--quiet",
    )  # fmt: skip
    call(*train, "--stop-at", 10)
    shutil.rmtree(run / "checkpoints" / "step-10")
    call(*train, "--stop-at", 0)
    records = [json.loads(line) for line in whole_lines(run / "metrics.jsonl")]
    assert [record["step"] for record in records] == list(range(1, 15)), records
    return records


def check_records(records, run):
    about = json.loads((run / "config.json").read_text())["about"]
    # Positions are looked up; the embedding of tokens is the head, too.
    multiplied = int(about["parameters"]) - SEQUENCE * WIDTH
    flops = 6 * multiplied + 12 * LAYERS * WIDTH * SEQUENCE
    for record in records:
        assert abs(record["time"] - time.time()) < 3600, record
        assert record["tokens"] == record["step"] * BATCH * SEQUENCE, record
        mfu = record["tokens_per_s"] * flops / (2 * PEAK_FLOPS)
        assert math.isclose(record["mfu"], mfu), (record, mfu)
        validated = record["step"] % VALIDATE == 0 or record["step"] == len(records)
        assert ("val_loss" in record) == validated, record
        assert len(record["ranks"]) == 2, record
        for rank in record["ranks"]:
            assert 0 < rank["busy_s"] and 0 < rank["step_s"] <= record["step_s"], record
            assert 2**20 < rank["rss_bytes"] <= record["rss_bytes"], record


def check_mfu_of_llama(sherd, run):
    """Its head is a matrix of its own, so that the embedding is looked up alone."""
    call(
        sherd, "train", *MODEL, "--model", "llama", "--batch", BATCH, "--steps", 1,
        "--run", run, "--peak-flops", PEAK_FLOPS, "--quiet",
    )  # fmt: skip
    record = json.loads(whole_lines(run / "metrics.jsonl")[0])
    about = json.loads((run / "config.json").read_text())["about"]
    multiplied = int(about["parameters"]) - VOCABULARY * WIDTH
    flops = 6 * multiplied + 12 * LAYERS * WIDTH * SEQUENCE
    assert math.isclose(record["mfu"], record["tokens_per_s"] * flops / PEAK_FLOPS)


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def read_by_tensorboard(records, run):
    """TensorBoard's reader has each step once, with the values of its last try."""
    from tensorboard.backend.event_processing.event_accumulator import (
        EventAccumulator,
    )
    from tensorboard.backend.event_processing.event_file_loader import (
        RawEventFileLoader,
    )

    folder = run / "tensorboard"
    files = sorted(folder.iterdir())
    assert len(files) == 2, files
    # It checks lengths and checksums: a version, a start, and ten steps.
    assert len(list(RawEventFileLoader(str(files[0])).Load())) == 12, files
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    tags = {name for record in records for name in record} - {"step", "time", "ranks"}
    assert set(found.Tags()["scalars"]) == tags, found.Tags()
    for tag in tags:
        expected = [
            (record["step"], as_float32(record[tag]), record["time"])
            for record in records
            if tag in record
        ]
        scalars = [(each.step, each.value, each.wall_time) for each in found.Scalars(tag)]
        assert scalars == expected, (tag, scalars, expected)


def check_csv(records, text):
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(records), text
    for row, record in zip(rows, records):
        absent = {"val_loss", "loss_scale", "skipped"}  # From some steps or runs.
        assert set(row) == (set(record) | absent) - {"ranks"}, row
        for name, value in row.items():
            expected = record.get(name)
            found = float(value) if value else None
            assert found == expected, (name, row, record)


def read_by_pandas(records, text):
    import pandas

    table = pandas.read_csv(io.StringIO(text))
    assert list(table["step"]) == [record["step"] for record in records], table
    assert all(str(each) in ("int64", "float64") for each in table.dtypes), table.dtypes
    validated = table["val_loss"].dropna()
    assert len(validated) == sum("val_loss" in record for record in records), table
    assert math.isclose(table["loss"].iloc[-1], records[-1]["loss"]), table


def readers(sherd, scratch):
    run = scratch / "run"
    records = trained(sherd, run)
    check_records(records, run)
    check_mfu_of_llama(sherd, scratch / "llama")
    text = call(sherd, "metrics", run)
    check_csv(records, text)
    read_replicas(sherd, run, scratch / "replicas")
    refuse_broken_metrics(sherd, run, scratch)
    try:
        read_by_tensorboard(records, run)
        read_by_pandas(records, text)
    except ModuleNotFoundError as missing:
        print(f"skipped: {missing}")
        sys.exit(EXIT_SKIPPED)


def read_replicas(sherd, run, folder):
    """A run of replicas: the lines of each one, after its number."""
    for replica in (0, 10, 2):
        (folder / f"replica-{replica}").mkdir(parents=True)
        shutil.copy(run / "metrics.jsonl", folder / f"replica-{replica}")
    header, *lines = call(sherd, "metrics", run).splitlines()
    expected = [f"{replica},{line}" for replica in (0, 2, 10) for line in lines]
    found = call(sherd, "metrics", folder).splitlines()
    assert found == [f"replica,{header}", *expected], found


def refuse_broken_metrics(sherd, run, scratch):
    expect(
        call(sherd, "metrics", scratch / "none", status=2),
        f"{scratch / 'none'}: expected the folder of a run, found none",
    )
    (scratch / "empty").mkdir()
    expect(
        call(sherd, "metrics", scratch / "empty", status=1),
        "expected the metrics of a run, found No such file",
    )
    broken = scratch / "broken"
    shutil.copytree(run, broken)
    metrics = broken / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text[:-40])  # A run was killed while it wrote.
    assert len(call(sherd, "metrics", broken).split("\n")) == 15
    expect(call(sherd, "top", broken, "--once"), "step 13 of 14")
    metrics.write_text(text[:100] + text[200:])
    for command in (("metrics", broken), ("top", broken, "--once")):
        expect(
            call(sherd, *command, status=1),
            f"{metrics}: expected lines of metrics, found '",
        )


# ---- top ----


def frames_on_a_terminal(sherd, run, count):
    """What `sherd top` draws first on a terminal of 80 columns, until Ctrl-C."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sherd, [sherd, "top", str(run)])
    drawn = b""
    while drawn.count(b"\x1b[H") <= count:
        drawn += os.read(terminal, 1 << 16)
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT, status
    return drawn.decode().split("\x1b[H")[1 : count + 1]


def show_running(sherd, run, address):
    shown = answer_to(sherd, "top", address, "--once")
    expect(shown, f"coordinator {address}", "committed: running", "member", "steps/s")
    assert shown == "" or max(map(len, shown.split("\n"))) <= 80, shown
    expect(answer_to(sherd, "top", f"http://{address}/", "--once"), "committed: running")
    shown = answer_to(sherd, "top", run, "--once")
    expect(
        shown, f"coordinator {address}", "replica-0   step ", "running, the last step",
        "tokens/s", "MFU", "loss", "r0.0", "r1.0", "MiB",
    )  # fmt: skip
    for frame in frames_on_a_terminal(sherd, run, 2):
        expect(frame, "\x1b[J", "r1.0")


def top(sherd, scratch):
    run = scratch / "run"
    with job(sherd, run) as address:
        show_running(sherd, run, address)
    nobody = f"{address}: expected the status page of a coordinator, found that nobody"
    expect(call(sherd, "top", address, "--once", status=1), nobody)
    for metrics in run.glob("replica-*/metrics.jsonl"):
        os.utime(metrics, (time.time() - 3600,) * 2)
    shown = call(sherd, "top", run, "--once")
    expect(shown, nobody, "r0.0")
    # A busy machine may take a while to come here.
    assert re.search("nothing runs, the last step was 1:0[0-4]:[0-5][0-9] ago", shown), shown
    shutil.rmtree(run / "replica-0")  # As on a host that has the other alone.
    expect(call(sherd, "top", run, "--once"), "r1.0")
    for target in (scratch / "none", "nowhere"):
        expect(
            call(sherd, "top", target, "--once", status=2),
            f"{target}: expected the folder of a run or the HOST:PORT",
        )
    (scratch / "empty").mkdir()
    expect(
        call(sherd, "top", scratch / "empty", "--once", status=2),
        f"{scratch / 'empty'}: expected the folder of a run, found neither",
    )
    (scratch / "empty" / "config.json").write_text("{")
    expect(
        call(sherd, "top", scratch / "empty", "--once"), "nothing has been written yet"
    )


def main():
    cases = {each.__name__: each for each in (readers, top)}
    if len(sys.argv) != 4 or sys.argv[1] not in cases:
        sys.exit(__doc__)
    scratch = pathlib.Path(sys.argv[3])
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    cases[sys.argv[1]](sys.argv[2], scratch)


if __name__ == "__main__":
    main()
