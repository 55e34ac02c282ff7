# SPDX-License-Identifier: Apache-2.0
"""``python -m sherd``: the command of that name, e.g. ``python -m sherd run -n 2 --
python train.py``. It becomes that program, so that signals reach it."""

import os
import sys
from pathlib import Path


def main():
    folder = Path(__file__).parent
    # Installed beside the package, else at the top of the build folder.
    places = [folder / "bin" / "sherd", folder.parents[1] / "sherd"]
    command = next((place for place in places if place.is_file()), None)
    if command is None:
        sys.exit(f"sherd: expected the command at {places[0]}, found none")
    os.execv(command, [str(command), *sys.argv[1:]])


if __name__ == "__main__":
    main()
