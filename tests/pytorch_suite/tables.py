# SPDX-License-Identifier: Apache-2.0
"""Tables of what came of PyTorch's tests, for a terminal and for a report."""

import collections

WIDTH = 110


def brief(why):
    """The exception's own words out of a traceback, on one line."""
    lines = why.strip().splitlines()
    raised = [
        number
        for number, line in enumerate(lines)
        if line[:1].isalpha()
        and "Error" in line.split(":")[0]
        and "exited with error code" not in line
    ]
    chosen = lines[raised[0] : raised[0] + 3] if raised else lines[-1:]
    return " ".join(" ".join(line.split()) for line in chosen if line.strip())


def line(row):
    why = f": {brief(row['why'])[:WIDTH]}" if row["why"] else ""
    return f"  {row['outcome']:<14} {row['seconds']:>6.1f} s  {row['test']}{why}"


def counts(rows):
    """Tests, applicable ones, passed ones, and the share of the latter in words."""
    of = collections.Counter(row["outcome"] for row in rows)
    applicable = of["passed"] + of["failed"]
    share = f"{100 * of['passed'] / applicable:.0f} %" if applicable else "-"
    return len(rows), applicable, of["passed"], share


def by_part(results):
    parts = {}
    for file, rows in results:
        parts.setdefault(file.part, []).extend(rows)
    return parts


def short(test):
    return test.rpartition(".")[2].removeprefix("test_")


def summary(results):
    rows = [("", "tests", "applicable", "passed", "share")]
    rows += [(file.title, *counts(found)) for file, found in results]
    rows += [(f"all of {part}", *counts(all)) for part, all in by_part(results).items()]
    width = max(len(str(row[0])) for row in rows)
    return "\n".join(
        f"{row[0]:<{width}}" + "".join(f"{cell:>12}" for cell in row[1:])
        for row in rows
    )


def cell(text):
    return text.replace("|", "\\|").replace("<", "&lt;")


def failures(file, rows, known):
    for row in rows:
        if row["outcome"] == "failed":
            why = known.of(file, row["test"]) or f"not known: {brief(row['why'])[:200]}"
            yield f"| {cell(short(row['test']))} | {cell(why)} |"


def reasons(rows):
    """Not applicable tests, gathered by their reason."""
    of = collections.defaultdict(list)
    for row in rows:
        if row["outcome"] == "not applicable":
            of[row["why"]].append(short(row["test"]))
    for why, tests in sorted(of.items(), key=lambda item: -len(item[1])):
        yield f"| {cell(why)} | {len(tests)} | {', '.join(sorted(tests))} |"


def section(file, rows, known):
    passed = sorted(short(row["test"]) for row in rows if row["outcome"] == "passed")
    yield f"\n### {file.title}\n"
    yield f"Passed: {', '.join(passed) or 'none'}.\n"
    if failed := list(failures(file, rows, known)):
        yield from ("| Failed | Why |", "|---|---|", *failed, "")
    if left_out := list(reasons(rows)):
        yield from ("| Not applicable because | | Tests |", "|---|---|---|", *left_out)


def report(results, known):
    head = ["| File | Tests | Applicable | Passed | Share |", "|---|---|---|---|---|"]
    rows = [(file.title, *counts(found)) for file, found in results]
    rows += [(f"all of {part}", *counts(all)) for part, all in by_part(results).items()]
    table = ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    parts = [line for file, found in results for line in section(file, found, known)]
    return "\n".join([*head, *table, *parts]) + "\n"
