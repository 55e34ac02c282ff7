#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program in the README is examples/first.cpp, which is built."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
blocks = re.findall(r"```cpp\n(.*?)```", (root / "README.md").read_text(), re.S)
example = (root / "examples/first.cpp").read_text().split("\n", 1)[1]
if blocks != [example]:
    sys.exit("README.md: its C++ block differs from examples/first.cpp")
