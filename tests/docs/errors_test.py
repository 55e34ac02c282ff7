#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The messages that docs/guide/errors.md quotes are in the sources.

The first cell of each row is a message in backticks; <...> stands for a variable
part. What lies between those parts must be in the strings of one source file.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)


def strings_of(source):
    """The text of a source in which neighbouring string literals are one."""
    return re.sub(r'(?<!\\)"\s*,?\s*"', "", source).replace('\\"', '"')


def fixed_parts(message):
    parts = (part.strip() for part in re.split(r"<[^<>]*>", message))
    return [part for part in parts if len(part) > 2]


def main():
    sources = [
        strings_of(path.read_text(encoding="utf-8"))
        for folder in ("src", "tools", "c10d_shm")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cpp", ".h") and "_test" not in path.name
    ]
    page = ROOT / "docs/guide/errors.md"
    messages = ROW.findall(page.read_text(encoding="utf-8"))
    unknown = [
        message
        for message in messages
        if not any(
            all(part in source for part in fixed_parts(message)) for source in sources
        )
    ]
    print(f"{len(messages)} messages")
    if unknown or len(messages) < 60:
        sys.exit("errors.md: no source has\n" + "\n".join(unknown))


if __name__ == "__main__":
    main()
