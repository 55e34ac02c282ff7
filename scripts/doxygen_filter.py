#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shows doxygen the comments of a public header: prints the file with `//` turned
into `///`, and into `///<` behind a declaration. Doxyfile names it as INPUT_FILTER."""

import re
import sys

COMMENT = re.compile(r"^( *)//(?: (.*))?$")
TRAILING = re.compile(r"^(.*[;,{)\w].*?)  ?// (.*)$")
# A heading of a group of fields, "---- behaviour ----", describes no field.
HEADING = re.compile(r"^-{2,}.*")


def filtered(lines):
    """As many lines; a comment behind a declaration becomes one line."""
    out = []
    trailing = None  # Where the last one is in `out`, and its column.
    in_file_comment = bool(lines) and lines[0].startswith("// SPDX")
    for number, line in enumerate(lines):
        comment, behind = COMMENT.match(line), TRAILING.match(line)
        in_file_comment = in_file_comment and bool(comment)
        if not comment:
            trailing = None
            if behind:
                trailing = number, line.rindex("// " + behind.group(2))
                line = f"{behind.group(1)} ///< {behind.group(2)}"
            out.append(line)
            continue
        indent, text = comment.group(1), comment.group(2) or ""
        if in_file_comment:
            out.append("/// \\file" if number == 0 else f"/// {text}")
        elif HEADING.match(text):
            out.append("")
        elif trailing and trailing[1] == len(indent):
            out[trailing[0]] += " " + text
            out.append("")
        else:
            trailing = None
            out.append(f"{indent}/// {text}")
    return out


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(filtered(file.read().splitlines())))
