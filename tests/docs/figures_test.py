#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of a document are those that a program prints.

  figures_test.py DOCUMENT COMMAND...

Every line that the command prints must be a line of the document.
"""

import pathlib
import subprocess
import sys


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    document = pathlib.Path(sys.argv[1])
    done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"{sys.argv[2:]} ended with {done.returncode}: {done.stdout}")
    lines = document.read_text(encoding="utf-8").splitlines()
    if [line for line in done.stdout.splitlines() if line not in lines]:
        sys.exit(f"expected in {document} the lines, found others:\n{done.stdout}")


if __name__ == "__main__":
    main()
