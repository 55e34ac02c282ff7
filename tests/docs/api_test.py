#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The API reference is made without a warning, of the comments of the headers.

  api_test.py FOLDER [options of unittest]
"""

import pathlib
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def doxygen(folder, *settings):
    """The exit status, and what was printed."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = "\n".join([
        (ROOT / "docs/Doxyfile").read_text(), f"OUTPUT_DIRECTORY = {folder}", *settings
    ])  # fmt: skip
    done = subprocess.run(
        ["doxygen", "-"], input=text, cwd=ROOT, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


class Api(unittest.TestCase):
    folder = None

    def test_pages_have_the_comments_of_the_headers(self):
        status, shown = doxygen(self.folder)
        self.assertEqual((status, shown), (0, ""))
        html = self.folder / "html"
        # A comment above, one behind a declaration, and the second line of a comment.
        for page, sentence in (
            ("classsherd_1_1FullyShardedDataParallel", "Scales gradients so that"),
            ("structsherd_1_1WorldOptions", "How long ranks may take to arrive"),
            ("structsherd_1_1PlanReport", "Steps that followed a plan throughout."),
            ("namespacesherd_1_1ft", "Its samples count as taken."),
        ):
            text = " ".join((html / f"{page}.html").read_text().split())
            self.assertTrue(sentence in text, f"{page}: {sentence}")

    def test_a_mistake_in_a_comment_is_an_error(self):
        header = self.folder.parent / "mistake.h"
        header.write_text("// Takes <nothing>.\nvoid f();\n")
        status, shown = doxygen(self.folder.with_name("mistake"), f"INPUT = {header}")
        self.assertNotEqual(status, 0)
        self.assertIn("<nothing>", shown)


if __name__ == "__main__":
    if not shutil.which("doxygen"):
        print("skipped: doxygen is not installed")
        sys.exit(77)
    Api.folder = pathlib.Path(sys.argv[1]).resolve()
    unittest.main(argv=sys.argv[:1] + sys.argv[2:], verbosity=2)
