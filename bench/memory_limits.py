#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares `sherd train --memory` with the best setting made by hand, at five limits.

  bench/memory_limits.py [--sherd build/release/sherd] [--ranks 2] [--steps 24]
      [--rounds 3] [--exchange collective] [--json FILE] [--svg FILE] [-- OPTIONS]

By hand there are six settings: full_shard, shard_grad_op and no_shard, each with
and without --recompute-activations. All settings take turns, round after round.
A setting fits a limit when no process of it ever had more resident, as the kernel
says (VmHWM); the time of a step is the median over all rounds of the last half of
the steps, on the slowest rank. OPTIONS are those of `sherd train` for model, batch and
data, instead of those below.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB = 1 << 20
MODEL = (
    "--layers", "12", "--width", "384", "--heads", "6", "--seq", "256", "--batch", "16",
)  # fmt: skip
QUIET = ("--eval-every", "0", "--eval-batches", "1", "--save-every", "0",
         "--sample-tokens", "0", "--peak-flops", "1")  # fmt: skip
STRATEGIES = ("full_shard", "shard_grad_op", "no_shard")
SHARES = (0.15, 0.25, 0.5, 0.75, 1.0)  # Of the way from the floor to keeping all.


def children(pid):
    """Processes below `pid`, as deep as they go."""
    try:
        found = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return found + [deeper for child in found for deeper in children(child)]


def resident_peak(pid):
    """VmHWM in bytes; 0 for a process that is gone."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0


class RefusedError(Exception):
    """A limit below the floor."""


class Bench:
    def __init__(self, arguments, scratch):
        self.arguments = arguments
        self.scratch = pathlib.Path(scratch)
        self.runs = 0

    def command(self, *options):
        one = self.arguments
        return [
            one.sherd, "run", "--no-prefix", "-n", str(one.ranks), "--",
            one.sherd, "train", *QUIET, "--exchange", one.exchange,
            "--steps", str(one.steps), *(one.options or MODEL), *options,
        ]  # fmt: skip

    def train(self, options):
        """Times of the last half of the steps, the most resident of any rank, and
        the time that --memory expected at last."""
        self.runs += 1
        run = self.scratch / str(self.runs)
        output = self.scratch / f"{self.runs}.txt"
        with output.open("w") as file:
            process = subprocess.Popen(
                self.command(*options, "--run", str(run)),
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        peak = 0
        while process.poll() is None:
            peak = max([peak, *map(resident_peak, children(process.pid))])
            time.sleep(0.02)  # Between looks; nothing waits for it.
        shown = output.read_text()
        if process.returncode and "below its floor" in shown:
            raise RefusedError
        if process.returncode:
            raise RuntimeError(f"{' '.join(options)}: {shown}")
        lines = (run / "metrics.jsonl").read_text().splitlines()
        times = [json.loads(line)["step_s"] for line in lines]
        expected = re.findall(r"([0-9.]+) s a step expected", shown)
        return times[len(times) // 2 :], peak, float(expected[-1]) if expected else None

    def limits(self):
        """Limits in bytes, from `suggest()`."""
        shown = subprocess.run(
            self.command("--plan", "--memory", "1TiB"),
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        begin = next(i for i, line in enumerate(shown) if "limit MiB" in line) + 1
        suggested = [float(line.split()[0]) for line in shown[begin:] if line.strip()]
        floor, most = suggested[0] * MIB, suggested[-1] * MIB
        return [int(floor + (most - floor) * share) for share in SHARES]


def measured(bench, settings, rounds):
    """By name: median time of a step, the peak, and the time that was expected."""
    times = {name: [] for name in settings}
    expected = {name: [] for name in settings}
    peaks = dict.fromkeys(settings, 0)
    for round_ in range(rounds):
        for name, options in settings.items():
            print(f"round {round_ + 1} of {rounds}: {name}", file=sys.stderr)
            try:
                new, peak, said = bench.train(options)
            except RefusedError:
                new, peak, said = [], 1 << 60, None
            times[name] += new
            expected[name] += [said] if said else []
            peaks[name] = max(peaks[name], peak)
    return {
        name: {
            "step_s": statistics.median(times[name]) if times[name] else None,
            "peak": peaks[name],
            "expected_s": statistics.median(expected[name]) if expected[name] else None,
        }
        for name in settings
    }


def compare(limits, by_hand, planned):
    """A row for each limit."""
    rows = []
    for limit in limits:
        fits = {n: r for n, r in by_hand.items() if r["peak"] <= limit}
        best = min(fits, key=lambda name: fits[name]["step_s"]) if fits else None
        ours = planned[str(limit)]
        rows.append({
            "limit": limit, "ours_s": ours["step_s"], "ours_peak": ours["peak"],
            "expected_s": ours["expected_s"], "kept": ours["peak"] <= limit, "best": best,
            "best_s": fits[best]["step_s"] if best else None,
        })  # fmt: skip
    return rows


def table(rows):
    lines = ["| limit MiB | --memory, s/step | expected | its peak MiB | best by hand | s/step | times as fast |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        if row["ours_s"] is None:
            lines.append(f"| {row['limit'] / MIB:.0f} | refused | | | {row['best'] or 'none fits'} | | |")
            continue
        ratio = f"{row['best_s'] / row['ours_s']:.2f}" if row["best"] else "only one that fits"
        best_s = f"{row['best_s']:.3f}" if row["best"] else "-"
        lines.append(
            f"| {row['limit'] / MIB:.0f} | {row['ours_s']:.3f} | {row['expected_s']:.3f} | {row['ours_peak'] / MIB:.0f}"
            f"{'' if row['kept'] else ' (above)'} | {row['best'] or 'none fits'} | {best_s} | {ratio} |"
        )
    return "\n".join(lines)


def svg(rows, by_hand):
    """Time over memory: points by hand, a line for --memory."""
    peaks = [r["peak"] for r in by_hand.values()] + [r["limit"] for r in rows]
    ran = [row for row in rows if row["ours_s"] is not None]
    times = [r["step_s"] for r in by_hand.values()] + [r["ours_s"] for r in ran]
    left, right, top = min(peaks) * 0.97, max(peaks) * 1.03, max(times) * 1.1
    x = lambda bytes_: 60 + 560 * (bytes_ - left) / (right - left)  # noqa: E731
    y = lambda seconds: 300 - 260 * seconds / top  # noqa: E731
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 350" '
           'font-family="sans-serif" font-size="12">',
           "<!-- Drawn by bench/memory_limits.py. -->",
           '<rect width="680" height="350" fill="#fff"/>',
           '<text x="340" y="20" text-anchor="middle">Seconds a step over resident '
           "memory of a process</text>"]  # fmt: skip
    for i in range(5):
        seconds, bytes_ = top * i / 4, left + (right - left) * i / 4
        out.append(f'<line x1="60" x2="620" y1="{y(seconds):.0f}" y2="{y(seconds):.0f}" stroke="#ddd"/>')
        out.append(f'<text x="54" y="{y(seconds) + 4:.0f}" text-anchor="end">{seconds:.2f}</text>')
        out.append(f'<text x="{x(bytes_):.0f}" y="318" text-anchor="middle">{bytes_ / MIB:.0f}</text>')
    out.append('<text x="340" y="340" text-anchor="middle">MiB</text>')
    points = " ".join(f"{x(r['limit']):.0f},{y(r['ours_s']):.0f}" for r in ran)
    out.append(f'<polyline fill="none" stroke="#1667c0" stroke-width="2" points="{points}"/>')
    out.append(f'<text x="66" y="34" fill="#1667c0">--memory</text>')
    for name, result in by_hand.items():
        cx, cy = x(result["peak"]), y(result["step_s"])
        out.append(f'<circle cx="{cx:.0f}" cy="{cy:.0f}" r="4" fill="#b3541e"/>')
        out.append(f'<text x="{cx + 6:.0f}" y="{cy - 6:.0f}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sherd", default=str(ROOT / "build/release/sherd"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exchange", default="collective")
    parser.add_argument("--json")
    parser.add_argument("--svg")
    parser.add_argument("options", nargs="*", help="of sherd train, after --")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(arguments, scratch)
        limits = bench.limits()
        settings = {}
        for strategy in STRATEGIES:
            settings[strategy] = ("--strategy", strategy)
            settings[strategy + " recomputed"] = (*settings[strategy], "--recompute-activations")
        by_hand_names = list(settings)
        for limit in limits:
            settings[str(limit)] = ("--memory", str(limit))
        results = measured(bench, settings, arguments.rounds)
    by_hand = {name: results[name] for name in by_hand_names}
    rows = compare(limits, by_hand, results)
    print(table(rows))
    for name, result in by_hand.items():
        print(f"{name}: {result['step_s']:.3f} s/step, peak {result['peak'] / MIB:.0f} MiB")
    if arguments.json:
        pathlib.Path(arguments.json).write_text(
            json.dumps({"rows": rows, "by_hand": by_hand}, indent=2)
        )
    if arguments.svg:
        pathlib.Path(arguments.svg).write_text(svg(rows, by_hand))


if __name__ == "__main__":
    main()
