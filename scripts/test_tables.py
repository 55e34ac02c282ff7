# SPDX-License-Identifier: Apache-2.0
"""A rule of scripts/tidy.py: two tables and the tests that they name belong together.

docs/design/tests.md has a row for each number from T01 to T66, and
docs/guide/from_pytorch.md one for each of A1 to A43, B1 to B43, C1 to C29 and
D1 to D4. The last cell of a row names tests that show it, as `Suite.Name` or
as the path of a Python test, or says why there is none.
"""

import re

NUMBERS = "docs/design/tests.md"
FEATURES = "docs/guide/from_pytorch.md"
TABLES = (NUMBERS, FEATURES)

NUMBER_IDS = [f"T{i:02}" for i in range(1, 67)]
FEATURE_IDS = [f"{area}{i}" for area, count in
               (("A", 43), ("B", 43), ("C", 29), ("D", 4))
               for i in range(1, count + 1)]
# A number without a test says which of the two it is, and why.
NO_TEST = re.compile(r"(Later|Not needed): \w")
SHOWN = ("works", "partly")
NOT_SHOWN = ("not yet", "not needed")

ROW = re.compile(r"\| *([A-Z]\d+) *\|(.*)\|$")
NAMED = re.compile(r"`([A-Z]\w*\.\w+|tests/[\w/]+\.py)`")
TEST = re.compile(r"^ *(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.M)


def tests_of(tree):
    """Names of tests: `Suite.Name`, and paths of those in Python."""
    names = {path for path in tree if path.endswith("_test.py")}
    for path, text in tree.items():
        if path.endswith((".cpp", ".h")):
            names.update(".".join(found) for found in TEST.findall(text))
    return names


def numbers_in(test):
    """T10T21OfBoth has the numbers T10 and T21."""
    numbers = re.match(r"(?:[A-Z]\d\d?)*", test.split(".")[-1]).group(0)
    return re.findall(r"T\d\d", numbers)


def rows_of(text):
    """[(line, id, cells after it)] of the rows that begin with an id."""
    for line, row in enumerate(text.splitlines(), 1):
        match = ROW.match(row)
        if match:
            cells = re.split(r"(?<!\\)\|", match.group(2))
            yield line, match.group(1), [cell.strip() for cell in cells]


def check_row(path, row, cells, tests, numbered):
    """What is wrong with a row; None: nothing."""
    named = NAMED.findall(cells[-1])
    for name in named:
        if name not in tests:
            return f"names {name}, which no source has, name a test that exists"
    if path == NUMBERS:
        if not named and not NO_TEST.match(cells[-1]):
            return ("names no test, name one as `Suite.Name` or say "
                    "`Later: ...` or `Not needed: ...`")
        if not named and row in numbered:
            return f"has a test by now, name it: {numbered[row]}"
    elif len(cells) != 4:
        return f"has {len(cells) + 1} cells, write id, PyTorch, sherd, state, tests"
    elif cells[2] not in SHOWN + NOT_SHOWN:
        return f"is {cells[2]!r}, say one of {', '.join(SHOWN + NOT_SHOWN)}"
    elif cells[2] in SHOWN and not named:
        return f"{cells[2]} and names no test, name one as `Suite.Name`"
    elif cells[2] == "not needed" and not cells[3]:
        return "is not needed, say why"
    return None


def check_table(path, text, ids, tests):
    """[(line, text)] of what is wrong with a table."""
    numbered = {number: test for test in sorted(tests, reverse=True)
                for number in numbers_in(test)}
    seen = set()
    for line, row, cells in rows_of(text):
        if row not in ids or row in seen:
            why = "twice" if row in seen else "but the table has no such row"
            yield line, f"found {row} {why}, give each row its own id"
            continue
        seen.add(row)
        wrong = check_row(path, row, cells, tests, numbered)
        if wrong:
            yield line, f"found that {row} {wrong}"
    for row in ids:
        if row not in seen:
            yield 1, f"found no row {row}, write one"
    if path == NUMBERS:
        for number in sorted(set(numbered) - set(ids)):
            yield 1, (f"found {numbered[number]}, but no row {number}, give the "
                      "test another name")


def check_test_tables(tree):
    """[(path, line, text)]"""
    tests = tests_of(tree)
    for path, ids in ((NUMBERS, NUMBER_IDS), (FEATURES, FEATURE_IDS)):
        if path in tree:
            for line, text in check_table(path, tree[path], ids, tests):
                yield path, line, text
