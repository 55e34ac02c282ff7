# SPDX-License-Identifier: Apache-2.0
"""scripts/compare_loss.py tells equal, close, different and other texts apart."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(
    os.path.dirname(__file__), "..", "..", "scripts", "compare_loss.py"
)


class CompareLoss(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.golden = os.path.join(self.scratch.name, "golden.txt")
        self.run_folder([5.5, 4.25, 3.125])
        self.assertEqual(self.compare("--record", "2").returncode, 0)

    def run_folder(self, losses, corpus="abc"):
        about = {"about": {"corpus_hash": corpus, "torch": "2.13.0"}}
        with open(os.path.join(self.scratch.name, "config.json"), "w") as file:
            json.dump(about, file)
        with open(os.path.join(self.scratch.name, "metrics.jsonl"), "w") as file:
            for step, loss in enumerate(losses, start=1):
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")

    def compare(self, *options):
        return subprocess.run(
            [sys.executable, SCRIPT, self.scratch.name, self.golden, *options],
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_run_equals_what_was_recorded_of_it(self):
        self.assertEqual(self.compare("--assert-equal").returncode, 0)

    def test_a_shorter_run_is_compared_as_far_as_it_goes(self):
        self.run_folder([5.5])
        self.assertEqual(self.compare("--assert-equal").returncode, 0)

    def test_a_difference_names_step_expected_and_found(self):
        self.run_folder([5.5, 4.5, 3.0])
        self.assertEqual(self.compare("--assert-close", "0.3").returncode, 0)
        result = self.compare("--assert-close", "0.1")
        self.assertEqual(result.returncode, 1)
        self.assertIn("step 2: expected loss 4.25", result.stderr)
        self.assertIn("found 4.5", result.stderr)

    def test_a_loss_that_is_no_number_is_a_difference(self):
        for loss in (float("nan"), None):  # sherd writes null.
            self.run_folder([5.5, loss, 3.0])
            result = self.compare("--assert-close", "9")
            self.assertEqual(result.returncode, 1)
            self.assertIn("found nan", result.stderr)

    def test_an_empty_run_is_a_difference(self):
        self.run_folder([])
        self.assertEqual(self.compare("--assert-close", "9").returncode, 1)

    def test_another_text_is_a_skip(self):
        self.run_folder([1.0, 1.0], corpus="other")
        result = self.compare("--assert-equal")
        self.assertEqual(result.returncode, 77)
        self.assertIn("other", result.stdout)

    def test_the_last_loss_can_be_bounded(self):
        close = ("--assert-close", "1")
        self.assertEqual(
            self.compare(*close, "--last-below", "3.2").returncode, 0
        )
        self.assertEqual(
            self.compare(*close, "--last-below", "3.1").returncode, 1
        )

    def test_what_is_no_run_is_refused(self):
        os.remove(os.path.join(self.scratch.name, "config.json"))
        result = self.compare("--assert-equal")
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected the folder of a run", result.stderr)


if __name__ == "__main__":
    unittest.main()
