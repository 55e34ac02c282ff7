#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the C++ blocks of documents into one source, so that they are compiled.

  extract_cpp.py OUTPUT DOCUMENT...

A block with an #include is a whole program and gets a namespace of its own, its
includes moved to the top. Any other block is the inside of a function that is
given what context.h declares. The compiler names document and line.
"""

import pathlib
import re
import sys

BLOCK = re.compile(r"^```cpp\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INCLUDE = re.compile(r"^#include .*$", re.MULTILINE)


def blocks_of(path):
    """[(line of the first line, text)]"""
    text = path.read_text(encoding="utf-8")
    return [
        (text.count("\n", 0, match.start(1)) + 1, match.group(1))
        for match in BLOCK.finditer(text)
    ]


def source_of(documents):
    includes, bodies = {'#include "docs/context.h"'}, []
    for path in documents:
        for line, text in blocks_of(path):
            name = re.sub(r"\W", "_", path.stem) + f"_line_{line}"
            body = f'#line {line} "{path}"\n' + INCLUDE.sub("", text)
            if INCLUDE.search(text):
                includes.update(INCLUDE.findall(text))
                bodies.append(f"namespace {name} {{\n{body}}}\n")
            else:
                # The inner braces let a block declare what it is given.
                bodies.append(f"void {name}(GIVEN) {{ {{\n{body}}} }}\n")
    if not bodies:
        sys.exit("expected documents with C++ blocks, found none")
    return "\n".join([*sorted(includes), "", *bodies])


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    source = source_of([pathlib.Path(name) for name in sys.argv[2:]])
    pathlib.Path(sys.argv[1]).write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main()
