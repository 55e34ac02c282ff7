#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows what ninja builds on one line: how far it is, and how long it will take.

Usage: ninja ... | scripts/progress.py. A terminal sees one line that is written
anew with each step; a file or a pipe gets a line every ten seconds. Whatever else
ninja prints (warnings, errors) is passed on as it is.
"""

import re
import sys
import time

STEP = re.compile(r"\[(\d+)/(\d+)\] (.*)")
SECONDS_BETWEEN_LINES = 10


def in_words(seconds):
    """83 -> "1 min 23 s"."""
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def folder_of(step):
    """The folder whose file is built, "" where the step names none."""
    match = re.search(r"(\S+?)/CMakeFiles/", step)
    return match.group(1) if match else ""


def line(done, total, elapsed, folder):
    """Supposes that the steps to come take as long as those before."""
    left = elapsed * (total - done) / done
    text = f"build: {done} of {total} steps, {in_words(elapsed)}"
    if done < total:
        text += f", about {in_words(left)} left"
    return text + (f" ({folder})" if folder else "")


def show(lines, out, now=time.monotonic):
    terminal = out.isatty()
    started = now()
    printed = None
    open_line = False
    for text in lines:
        match = STEP.match(text)
        if not match:
            if text.startswith("ninja: Entering directory"):
                continue
            out.write(("\n" if open_line else "") + text)
            open_line = False
            continue
        done, total = int(match.group(1)), int(match.group(2))
        if done == 0:
            continue
        passed = now() - started
        status = line(done, total, passed, folder_of(match.group(3)))
        if terminal:
            out.write("\r" + status[:100].ljust(100))
            open_line = True
        elif (printed is None or done == total or
              passed - printed >= SECONDS_BETWEEN_LINES):
            printed = passed
            out.write(status + "\n")
        out.flush()
    if open_line:
        out.write("\n")


if __name__ == "__main__":
    show(sys.stdin, sys.stdout)
