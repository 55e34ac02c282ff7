#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains two replicas over a slow link, once for each communication hook.

  sudo bench/slow_link.py [--sherd build/release/sherd] [--mbit 100]
      [--steps 300] [--hooks mean bf16 power_sgd] [--json FILE]

Each rank is a host of its own: a network namespace, joined to the other's by a
veth pair that tc's token bucket shapes to --mbit in both directions. The work
is `small` of `sherd bench`, the text the headers of LibTorch. Prints bytes on
the wire, time of a step (median with a 95 % interval, by order statistics) and
losses. Needs root, ip and tc; leaves nothing behind.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PORT = 29455
WORK = (
    "--layers", "8", "--width", "256", "--heads", "4", "--seq", "128",
    "--batch", "8", "--eval-every", "0", "--sample-tokens", "0",
    "--strategy", "ddp", "--exchange", "collective",
)  # fmt: skip


def tool(*words):
    subprocess.run(words, check=True)


class Hosts:
    """Two namespaces and the link between them."""

    def __init__(self, mbit):
        self.names = [f"sherd{os.getpid()}_{i}" for i in range(2)]
        self.mbit = mbit

    def __enter__(self):
        try:
            self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self):
        for name in self.names:
            tool("ip", "netns", "add", name)
        pair = ["name", "wire", "netns", self.names[0], "type", "veth"]
        peer = ["peer", "name", "wire", "netns", self.names[1]]
        tool("ip", "link", "add", *pair, *peer)
        for i, name in enumerate(self.names):
            inside = ["ip", "-n", name]
            tool(*inside, "addr", "add", f"10.97.0.{i + 1}/24", "dev", "wire")
            tool(*inside, "link", "set", "lo", "up")
            tool(*inside, "link", "set", "wire", "up")
            shape = ["root", "tbf", "rate", f"{self.mbit}mbit"]
            shape += ["burst", "128kb", "latency", "100ms"]
            tool("tc", "-n", name, "qdisc", "add", "dev", "wire", *shape)

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def start(self, rank, command):
        variables = {
            "RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
            "MASTER_ADDR": "10.97.0.1", "MASTER_PORT": PORT, "OMP_NUM_THREADS": 1,
        }  # fmt: skip
        inside = ["ip", "netns", "exec", self.names[rank], "unshare", "--uts"]
        script = f"hostname host{rank} && exec \"$@\""
        return subprocess.Popen(
            [*inside, "sh", "-c", script, "sh", *command],
            env=os.environ | {k: str(v) for k, v in variables.items()},
        )

    def bytes_sent(self):
        """By both; what the link has carried."""
        total = 0
        for name in self.names:
            shown = subprocess.run(
                ["ip", "-n", name, "-s", "-j", "link", "show", "wire"],
                check=True, stdout=subprocess.PIPE,
            )  # fmt: skip
            total += json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]
        return total


def interval(values):
    """Of the median, 95 %: ranks of order statistics by the normal rule."""
    ordered = sorted(values)
    half = 0.98 * math.sqrt(len(ordered))
    low = max(0, math.floor(len(ordered) / 2 - half))
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + half))
    return ordered[low], ordered[high]


def train(hosts, options, hook, folder):
    before = hosts.bytes_sent()
    command = [options.sherd, "train", *WORK, "--steps", str(options.steps)]
    command += ["--hook", hook, "--hook-rank", str(options.hook_rank)]
    command += ["--run", str(folder), "--quiet"]
    ranks = [hosts.start(rank, command) for rank in range(2)]
    try:
        codes = [rank.wait() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()  # Of those that have ended: nothing.
    if any(codes):
        sys.exit(f"training with --hook {hook} ended with {codes}")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    steps = [record["step_s"] for record in records]
    # From where PowerSGD compresses on.
    steady = steps[10:] or steps
    low, high = interval(steady)
    return {
        "hook": hook,
        "bytes_per_step": (hosts.bytes_sent() - before) / len(records),
        "step_s": statistics.median(steady),
        "step_s_low": low,
        "step_s_high": high,
        "all_steps_s": sum(steps),
        "loss": statistics.mean(record["loss"] for record in records[-20:]),
        "val_loss": records[-1]["val_loss"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sherd", default=str(ROOT / "build/release/sherd"))
    parser.add_argument("--mbit", type=float, default=100.0)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--hooks", nargs="+", default=["mean", "bf16", "power_sgd"])
    parser.add_argument("--hook-rank", type=int, default=32)
    parser.add_argument("--json", help="where results go, too")
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("expected root, which network namespaces need")
    results = []
    with Hosts(options.mbit) as hosts, tempfile.TemporaryDirectory() as scratch:
        for hook in options.hooks:
            results.append(train(hosts, options, hook, pathlib.Path(scratch, hook)))
            one, first = results[-1], results[0]
            print(
                f"{hook:10} {one['bytes_per_step'] / 1e6:8.2f} MB a step  "
                f"{one['step_s']:.3f} s ({one['step_s_low']:.3f}-{one['step_s_high']:.3f})  "
                f"{first['step_s'] / one['step_s']:.2f} times as fast  "
                f"all {one['all_steps_s']:.0f} s  "
                f"loss {one['loss']:.4f}, validation {one['val_loss']:.4f}",
                flush=True,
            )
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
