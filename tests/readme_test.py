#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""C++ in two documents is that of examples, which are built and run (the first one
by `make soak`): the README shows all of examples/first.cpp,
docs/guide/own_models.md parts of cnn.cpp. The Dockerfile does what the README says."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent


def blocks_of(document):
    return re.findall(r"```cpp\n(.*?)```", (root / document).read_text(), re.S)


def example(name):
    """Without the licence line."""
    return (root / "examples" / name).read_text().split("\n", 1)[1]


if blocks_of("README.md") != [example("first.cpp")]:
    sys.exit("README.md: its C++ block differs from examples/first.cpp")
parts = blocks_of("docs/guide/own_models.md")
strange = [part for part in parts if part not in example("cnn.cpp")]
if len(parts) < 5 or strange:
    sys.exit("docs/guide/own_models.md: expected parts of examples/cnn.cpp, found\n"
             + "\n".join(strange))

# "On Debian 12 or Ubuntu 24.04 with git, g++, make and python3:"
readme = (root / "README.md").read_text()
systems, tools = re.search(r"^On (.*) with (.*):$", readme, re.M).groups()
docker = (root / "Dockerfile").read_text()
base = re.search(r"^FROM (.*)$", docker, re.M).group(1)
if base not in [name.lower().replace(" ", ":") for name in systems.split(" or ")]:
    sys.exit(f"Dockerfile: expected one of {systems}, found {base}")
installed = re.search(r"--no-install-recommends (.*)$", docker, re.M).group(1)
if installed.split() != re.findall(r"[^\s,]+(?=,| and|$)", tools):
    sys.exit(f"Dockerfile: expected to install {tools}, found {installed}")
runs = re.findall(r"^RUN (.*)$", docker, re.M)
said = ["make build", "cmake --install build/release --prefix DIR"]
if [run.replace("/usr/local", "DIR") for run in runs[1:]] != said or (
        said[1] not in readme):
    sys.exit(f"Dockerfile: expected to run what README.md says, found {runs[1:]}")
