#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""worker.py bounds the time of each test and ends what a test leaves behind; the
lists and the tables say what came of them. Needs no PyTorch."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

# pylint: disable=wrong-import-position
import suites
import tables

TESTS = """
import os
import pathlib
import subprocess
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent

def leave_a_rank(name):
    rank = subprocess.Popen(["sleep", "600"])
    (HERE / name).write_text(str(rank.pid))

class Cases(unittest.TestCase):
    def test_passes(self):
        leave_a_rank("passes")

    def test_fails(self):
        self.assertEqual(1, 2)

    def test_skips(self):
        self.skipTest("no such device")

    def test_dies(self):
        os._exit(3)

    def test_hangs(self):
        leave_a_rank("hangs")
        time.sleep(600)

    def test_left_out(self):
        pass

    def test_of_another_device(self):
        self.fail("this is not to be run")
"""


def gone(process):
    try:
        state = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return True
    return state.split()[0] == "Z"


class Worker(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "cases.py").write_text(TESTS)

    def rows(self):
        job = {
            "file": str(self.folder / "cases.py"), "folders": [], "adapters": [],
            "limit_s": 10, "logs": str(self.folder), "tests": ["*"],
            "of_file": ["Cases.*"], "without": ["*left_out"],
            "reasons": [["*_of_another_*", "another device"]],
        }  # fmt: skip
        words = [sys.executable, str(HERE / "worker.py"), json.dumps(job)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {row["test"]: row for row in rows}

    def expect_gone(self, name):
        process = int((self.folder / name).read_text())
        deadline = time.monotonic() + 60
        while not gone(process) and time.monotonic() < deadline:
            os.sched_yield()
        self.assertTrue(gone(process), f"{name}: {process} is still there")

    def test_each_test_has_an_outcome_and_an_end(self):
        rows = self.rows()
        outcomes = {name: row["outcome"] for name, row in rows.items()}
        self.assertEqual(outcomes, {
            "Cases.test_passes": "passed",
            "Cases.test_fails": "failed",
            "Cases.test_skips": "not applicable",
            "Cases.test_dies": "failed",
            "Cases.test_hangs": "failed",
            "Cases.test_of_another_device": "not applicable",
        })
        why = {name: row["why"] for name, row in rows.items()}
        self.assertIn("1 != 2", why["Cases.test_fails"])
        self.assertIn("no such device", why["Cases.test_skips"])
        self.assertIn("without a word", why["Cases.test_dies"])
        self.assertIn("not ended after 10 s", why["Cases.test_hangs"])
        self.assertEqual(why["Cases.test_of_another_device"], "another device")
        self.expect_gone("passes")
        self.expect_gone("hangs")


class Lists(unittest.TestCase):
    def test_every_line_has_a_file_that_is_run_and_a_reason(self):
        stems = {pathlib.Path(file.name).stem for file in suites.FILES}
        for reasons in (suites.not_applicable(), suites.known_failures()):
            for files, _, why in reasons.lines:
                self.assertIn(files, stems)
                self.assertGreater(len(why), 10)

    def test_the_share_is_of_what_is_applicable(self):
        rows = [{"outcome": outcome} for outcome in
                ("passed", "passed", "passed", "failed", "not applicable")]
        self.assertEqual(tables.counts(rows), (5, 4, 3, "75 %"))


if __name__ == "__main__":
    unittest.main()
