#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The line that a build shows while it runs (scripts/progress.py)."""

import io
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "scripts"))
import progress  # noqa: E402


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(lines, out, times):
    clock = iter(times)
    progress.show(lines, out, lambda: next(clock))
    return out.getvalue()


STEPS = ["[1/4] Building CXX object src/net/CMakeFiles/sherd_net.dir/a.cpp.o\n",
         "[2/4] Building CXX object src/net/CMakeFiles/sherd_net.dir/b.cpp.o\n",
         "[4/4] Linking CXX executable sherd\n"]


class Progress(unittest.TestCase):
    def test_says_how_far_it_is_and_how_long_it_will_take(self):
        text = progress.line(20, 80, 65, "src/net")
        self.assertEqual(
            text, "build: 20 of 80 steps, 1 min 5 s, about 3 min 15 s left (src/net)")

    def test_the_end_has_nothing_left(self):
        self.assertEqual(progress.line(4, 4, 9, ""), "build: 4 of 4 steps, 9 s")

    def test_a_pipe_gets_a_line_every_ten_seconds_and_the_last(self):
        text = shown(STEPS, io.StringIO(), [0, 1, 2, 3])
        self.assertEqual([line.split(",")[0] for line in text.splitlines()],
                         ["build: 1 of 4 steps", "build: 4 of 4 steps"])

    def test_a_terminal_sees_one_line(self):
        text = shown(STEPS, Terminal(), [0, 1, 2, 3])
        self.assertEqual(text.count("\n"), 1)
        self.assertEqual(text.count("\r"), 3)

    def test_what_the_compiler_says_is_passed_on(self):
        text = shown([STEPS[0], "a.cpp:1: error: expected ;\n"], Terminal(), [0, 1])
        self.assertIn("\na.cpp:1: error: expected ;\n", text)


if __name__ == "__main__":
    unittest.main()
