#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the losses of a run with a golden file, step by step.

  compare_loss.py RUN GOLDEN --assert-equal
  compare_loss.py RUN GOLDEN --assert-close 1e-3 [--last-below 2.9]
  compare_loss.py RUN GOLDEN --record 50

RUN is a folder that `sherd train` wrote. A golden file has comment lines
"# key value" and then one "step loss" a line. Steps that only one of the two
has are left out, but all of the shorter one must be there. Exit status: 0 they
agree, 1 they differ, 2 wrong usage, 77 not comparable because the run read
another text (LibTorch's headers differ between its versions).
"""

import argparse
import json
import math
import os
import sys

EXIT_DIFFERENT = 1
EXIT_USAGE = 2
EXIT_SKIPPED = 77


def refuse(path, expected, found):
    print(f"{path}: expected {expected}, found {found}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def read_run(folder):
    """The corpus hash, the torch version and {step: loss} of a run."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            about = json.load(file)["about"]
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        # A loss that is no number is null in JSON.
        losses = {
            row["step"]: math.nan if row["loss"] is None else row["loss"]
            for row in rows
        }
        return about, losses
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse(folder, "the folder of a run of sherd train", repr(error))


def read_golden(path):
    """The comments as {key: value} and {step: loss} of a golden file."""
    about, losses = {}, {}
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                words = line.split()
                if line.startswith("#"):
                    if len(words) == 3:
                        about[words[1]] = words[2]
                elif words:
                    losses[int(words[0])] = float(words[1])
    except (OSError, ValueError, IndexError) as error:
        refuse(path, "a golden file", repr(error))
    if not losses:
        refuse(path, "a golden file", "no losses")
    return about, losses


def record(path, count, about, losses):
    if count > len(losses):
        refuse(path, f"a run of {count} steps or more", len(losses))
    with open(path, "w", encoding="utf-8") as file:
        file.write("# Losses of `sherd train` with default options on one rank.\n")
        file.write("# Written by scripts/compare_loss.py --record.\n")
        for key in ("corpus_hash", "torch"):
            file.write(f"# {key} {about[key]}\n")
        for step in sorted(losses)[:count]:
            file.write(f"{step} {losses[step]:.9g}\n")


def compare(found, golden, tolerance):
    """None, or a sentence about the first step that differs too much."""
    steps = sorted(golden)[: len(found)]
    missing = [step for step in steps if step not in found]
    if missing or not steps:
        return f"expected step {missing[0] if missing else 1}, found none"
    worst = max(steps, key=lambda step: abs(found[step] - golden[step]))
    print(
        f"{len(steps)} steps, largest difference "
        f"{abs(found[worst] - golden[worst]):.3g} at step {worst}, "
        f"tolerance {tolerance:g}"
    )
    for step in steps:
        # Negated, so that a loss that is no number is a difference.
        if not abs(found[step] - golden[step]) <= tolerance:
            return (
                f"step {step}: expected loss {golden[step]:.9g} within "
                f"{tolerance:g}, found {found[step]:.9g}"
            )
    return None


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("golden")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--assert-equal", action="store_true")
    what.add_argument("--assert-close", type=float, metavar="TOLERANCE")
    what.add_argument("--record", type=int, metavar="STEPS")
    parser.add_argument("--last-below", type=float, metavar="LOSS")
    args = parser.parse_args()

    about, found = read_run(args.run)
    if args.record:
        record(args.golden, args.record, about, found)
        return 0
    golden_about, golden = read_golden(args.golden)
    if about["corpus_hash"] != golden_about.get("corpus_hash"):
        print(
            f"skipped: {args.golden} is for corpus "
            f"{golden_about.get('corpus_hash')}, the run read "
            f"{about['corpus_hash']}"
        )
        return EXIT_SKIPPED
    # Printed with nine digits a float comes back as it was, but the loss of a
    # run is a mean over ranks in double precision: equal means to nine digits.
    tolerance = 1e-8 if args.assert_equal else args.assert_close
    difference = compare(found, golden, tolerance)
    last = found[max(found)] if found else math.nan
    if difference is None and args.last_below is not None:
        if not last < args.last_below:
            difference = f"expected a last loss below {args.last_below}, found {last}"
    if difference is not None:
        print(difference, file=sys.stderr)
        return EXIT_DIFFERENT
    return 0


if __name__ == "__main__":
    sys.exit(main())
