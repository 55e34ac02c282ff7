# SPDX-License-Identifier: Apache-2.0
"""The command ``sherd`` of the installed package, and ``python -m sherd``: e.g. ``sherd
run -n 2 -- python train.py``. It becomes that program, so that signals reach it."""

import os
import sys
from pathlib import Path

# Programs of the C++ build that a wheel does not hold, since they train models of C++.
_NOT_IN_WHEELS = ("bench", "checkpoint", "data", "eval", "generate", "simulate", "trace",
                  "train")
_USAGE_ERROR = 2


def _check_that_it_is_there(command, words):
    """Exits where the command would look for a program that this package lacks."""
    name = words[0] if words else ""
    if name in _NOT_IN_WHEELS and not command.with_name(f"sherd-{name}").is_file():
        print(f"sherd: expected a command of the Python package, found '{name}', which only "
              "sherd's C++ build has: in a checkout, 'make build' makes it, and then it is "
              f"'build/release/sherd {name}'; docs/guide/python.md", file=sys.stderr)
        sys.exit(_USAGE_ERROR)


def main():
    folder = Path(__file__).parent
    # Installed beside the package, else at the top of the build folder.
    places = [folder / "bin" / "sherd", folder.parents[1] / "sherd"]
    command = next((place for place in places if place.is_file()), None)
    if command is None:
        sys.exit(f"sherd: expected the command at {places[0]}, found none")
    _check_that_it_is_there(command, sys.argv[1:])
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
