#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A profile of two ranks becomes one trace, and what commands refuse.

  trace_test.py SHERD SCRATCH
"""

import json
import pathlib
import shutil
import sys

from watched_job import BATCH, MODEL, call, expect

RANKS = 2
LANES = {"compute", "unshard", "reduce", "optimizer", "wait"}
SLACK_US = 0.002  # Times are rounded to nanoseconds.


def spans_by_lane(trace):
    """{(rank, lane): [(begin, end, name)]}, in the order of time."""
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    lanes = {key: [] for key in ((rank, name) for (rank, _), name in names.items())}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            lane = lanes[event["pid"], names[event["pid"], event["tid"]]]
            lane.append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for lane in lanes.values():
        lane.sort()
    return lanes


def check_trace(trace, exchange):
    lanes = spans_by_lane(trace)
    for rank in range(RANKS):
        assert LANES <= {lane for of, lane in lanes if of == rank}, sorted(lanes)
        for lane in LANES - ({"unshard"} if exchange == "shm" else set()):
            assert lanes[rank, lane], (rank, lane, exchange)
        # One thread computes, waits or runs the optimizer; the optimizer waits in between.
        busy = sorted(lanes[rank, "compute"] + lanes[rank, "wait"])
        for before, after in zip(busy, busy[1:]):
            assert before[1] <= after[0] + SLACK_US, (before, after)
        computed = {name for _, _, name in lanes[rank, "compute"]}
        assert {"forward h.0", "backward h.0"} <= computed, computed
        assert len(lanes[rank, "optimizer"]) == 2, lanes[rank, "optimizer"]
    for lane in lanes.values():
        for before, after in zip(lane, lane[1:]):
            assert before[1] <= after[0] + SLACK_US, (before, after)
    # Ranks leave the end of a backward together, by one clock; a busy machine may wake one late.
    ends = [
        [end for _, end, name in lanes[rank, "wait"] if name == "end the backward"]
        for rank in range(RANKS)
    ]
    assert len(ends[0]) == len(ends[1]) == 2, ends
    for one, other in zip(*ends):
        assert abs(one - other) < 60e6, ends


def profile(sherd, scratch, exchange, *launch):
    folder, trace = scratch / exchange, scratch / f"{exchange}.json"
    call(
        sherd, "run", "-n", RANKS, *launch, "--", sherd, "train", *MODEL, "--batch", BATCH,
        "--steps", 6, "--exchange", exchange, "--profile", folder, "--profile-steps", 2,
        "--run", scratch / f"run-{exchange}", "--peak-flops", 1e9, "--quiet",
    )  # fmt: skip
    expect(call(sherd, "trace", "merge", folder, "-o", trace), f"{RANKS} of {RANKS} ranks")
    check_trace(json.loads(trace.read_text()), exchange)
    expect(call(sherd, "trace", "flight", folder), "agree in every request", "rank 1: ")
    return folder


def check_refusals(sherd, scratch, folder):
    expect(call(sherd, "trace", "flight", scratch / "none", status=2), "rank-0.json")
    rank1 = folder / "rank-1.json"
    whole = rank1.read_text()
    for text, found in ((whole[:-10], "half of one"), ('{"a": 1}', "another format")):
        rank1.write_text(text)
        for words in (("flight", folder), ("merge", folder, "-o", scratch / "x.json")):
            expect(call(sherd, "trace", *words, status=2), str(rank1), found)
    rank1.write_text(whole)
    missing = scratch / "none" / "x.json"
    expect(call(sherd, "trace", "merge", folder, "-o", missing, status=1), str(missing))
    expect(
        call(sherd, "train", *MODEL, "--profile", scratch / "p", "--run", scratch / "r", status=2),
        "--profile: expected several ranks",
    )


def main(sherd, scratch):
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    profile(sherd, scratch, "shm")
    folder = profile(sherd, scratch, "collective", "--fake-hosts", 2)
    check_refusals(sherd, scratch, folder)


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
