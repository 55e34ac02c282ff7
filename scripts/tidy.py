#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks what compilers do not: who includes whom, dead and unbuilt files, the
length of files and functions, banned calls, names of types, comments, tables of
tests (test_tables.py). Rules are functions from a tree (path -> text) to
findings; the tree is read once and nothing is written.

Usage: scripts/tidy.py [ROOT]. Prints `path:line: rule: what was found, what to
do`, one line per finding, and exits with 1 when there are any.

A banned call that must stay carries its reason on its line, or on the line
above: `// NOLINT: counted by hand`, `// NOLINTNEXTLINE(rule): reason`. Long
functions that must stay are listed in scripts/tidy_allow.txt.
"""

import os
import posixpath
import re
import sys
from typing import Callable, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_tables


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


# ---------------------------------------------------------------------------
# The include table of STYLE.md: what is not listed is forbidden, also between
# neighbours. A part may always include itself and its own sub-folders. An entry
# that ends in .h is one header, the rest are whole parts.


class Part(NamedTuple):
    may_include: tuple[str, ...]
    torch: bool


def read_include_table(text):
    """(parts, programs): each part by its name, and the folders of programs on top
    of the library with the parts that they use beside public headers."""
    parts, programs = {}, {}
    listed = ()
    for row in re.findall(r"^\| (?!Part |tests)(.+) \|$", text, re.MULTILINE):
        names, allowed, torch = row.split(" | ")
        allowed = re.sub(r"(\S*)\{(.*?)\}(\.h)", lambda m: ", ".join(
            m[1] + name + m[3] for name in m[2].split(",")), allowed)
        # What has a space is said of programs, or means no part.
        words = allowed.split(";")[0].split(", ")
        before = listed if "the same" in words else ()
        listed = before + tuple(word for word in words if " " not in word)
        if allowed.startswith("public headers"):
            programs |= dict.fromkeys(names.split(", "), listed)
            continue
        torches = torch.split("; ")
        for number, name in enumerate(re.split("[,;] ", names)):
            needs = torches[min(number, len(torches) - 1)]
            parts[name] = Part(listed, needs == "yes")
    return parts, programs


with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "STYLE.md"),
          encoding="utf-8") as style:
    PARTS, PROGRAM_FOLDERS = read_include_table(
        style.read().split("## Who may include whom")[1].split("\n## ")[0])
# Every part may throw sherd::Error.
EVERYBODY_MAY_INCLUDE = ("sherd/base/error.h",)
# A library of its own; others spell its headers "c10d_shm/...".
LIBRARY_FOLDERS = ("src/", "c10d_shm/")
TEST_FOLDERS = ("tests", "fuzz")
TEST_SUFFIXES = ("_test.cpp", "_bench.cpp", "_fuzz.cpp",
                 "testing.h", "testing.cpp")
TORCH_INCLUDE = re.compile(r"(ATen|c10|torch|caffe2|gloo)/")
# Declarations that stand in for another project's headers.
FOREIGN = ("src/compat/gloo_declarations/",)

# ---------------------------------------------------------------------------
# Limits and banned calls.

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70
PUBLIC_HEADERS_MAX = 40
LICENCE = "SPDX-License-Identifier: Apache-2.0"
ALLOW_FILE = "scripts/tidy_allow.txt"
# Spelt so that this line is not a finding.
LEFTOVER = re.compile(r"\b(FI[X]ME|TO[D]O|X[X]X)\b")


class Ban(NamedTuple):
    rule: str
    pattern: str
    applies: Callable[[str], bool]
    instead: str


BANS = (
    Ban("getenv", r"\b(secure_)?getenv\s*\(",
        lambda p: not p.startswith(
            ("tools/", "bench/", "src/base/rank_environment")),
        "take the value as an argument; tools/, bench/ and "
        "src/base/rank_environment.cpp read the environment"),
    Ban("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\s*\(",
        lambda p: is_test(p),
        "wait for a condition with a deadline, or invent the time"),
    Ban("clock", r"\b(steady|system|high_resolution)_clock::now\b",
        # Programs and measurements are where time comes from.
        lambda p: not p.startswith(
            ("src/base/", "tools/", "examples/", "bench/")) and
        not p.endswith("_bench.cpp"),
        "take a Clock (base/clock.h)"),
    Ban("stdout", r"\bstd::cout\b|(?<![\w:.>])(std::)?(printf|puts|putchar)\s*\(",
        lambda p: p.startswith((*LIBRARY_FOLDERS, "include/")) and not is_test(p),
        "return the text, or use base/log.h"),
    # Placement, and a pointer that is owned at once, are not naked.
    Ban("new", r"(?<!_ptr<)\bnew\b(?!\s*\()",
        lambda p: True, "use std::make_unique or a container"),
    Ban("delete", r"(?<!operator )\bdelete\b(?!\s*[;,)])|\bdelete\s*\[",
        lambda p: True, "let a std::unique_ptr own it"),
    Ban("rand", r"(?<![\w:.>])(std::)?(rand\s*\(\s*\)|srand\s*\()",
        lambda p: True, "take a seeded generator, e.g. std::mt19937_64"),
)

# ---------------------------------------------------------------------------
# Reading.


def is_cpp(path):
    return path.endswith((".h", ".cpp", ".hpp", ".cc"))


def is_cmake(path):
    return path.endswith((".cmake", "CMakeLists.txt"))


def is_script(path):
    name = posixpath.basename(path)
    return path.endswith((".py", ".sh")) or (
        path.startswith(("scripts/", ".ci/")) and "." not in name)


def is_source(path):
    return is_cpp(path) or is_cmake(path) or is_script(path)


def is_test(path):
    return (path.split("/")[0] in TEST_FOLDERS or
            path.endswith(TEST_SUFFIXES))


def is_foreign(path):
    return path.startswith(FOREIGN)


def read_tree(root):
    """Every text file that is ours, by path relative to `root`."""
    tree = {}
    skip = {"build", "runs", "__pycache__", "node_modules"}
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            f for f in folders
            if f not in skip and (not f.startswith(".") or f == ".ci"))
        for name in sorted(names):
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root).replace(os.sep, "/")
            if is_source(path) or path in (ALLOW_FILE, *test_tables.TABLES):
                with open(full, encoding="utf-8", errors="replace") as file:
                    tree[path] = file.read()
    return tree


TOKENS = re.compile(
    r'R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"'    # raw string
    r'|"(?:\\.|[^"\\\n])*"'                  # string
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # character, not 1'000
    r"|//[^\n]*(?:\\\n[^\n]*)*"
    r"|/\*.*?\*/", re.DOTALL)


def blank(match):
    """As many lines, no words; a string stays an (empty) string."""
    text = match.group(0)
    quotes = '""' if text[0] in "\"'R" else " "
    return quotes + "\n" * text.count("\n")


def code_of(text):
    """C++ without comments, strings and preprocessor lines; lines kept."""
    code = TOKENS.sub(blank, text)
    return re.sub(
        r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*",
        lambda m: "\n" * m.group(0).count("\n"), code, flags=re.MULTILINE)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


# ---------------------------------------------------------------------------
# Includes.

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]',
                     re.MULTILINE)


def part_of(inner):
    """The part of a path below src/ or include/sherd/, the longest match."""
    words = inner.split("/")[:-1]
    while words and "/".join(words) not in PARTS:
        words.pop()
    return "/".join(words) or None


def spelled(path):
    """How includes name a file of the library."""
    return path.removeprefix("src/").removeprefix("c10d_shm/include/")


def home_of(path):
    """(area, part): area is "src", "include", a program folder or None."""
    for folder in PROGRAM_FOLDERS:
        if path.startswith(folder + "/"):
            return folder, None
    if path.startswith("c10d_shm/include/"):
        return "include", "c10d_shm"
    if path.startswith(LIBRARY_FOLDERS):
        return "src", part_of(spelled(path))
    if path.startswith("include/sherd/"):
        return "include", part_of(path[len("include/sherd/"):])
    return None, None


def check_includes(tree):
    for path, text in tree.items():
        if not is_cpp(path) or is_test(path) or is_foreign(path):
            continue
        area, part = home_of(path)
        if area is None:
            continue
        if area == "src" and part is None and path.count("/") > 1:
            yield Finding(path, 1, "include",
                          "found a folder that is no part, add it to PARTS in "
                          "scripts/tidy.py and to STYLE.md")
            continue
        for match in INCLUDE.finditer(text):
            wrong = why_not(tree, path, area, part, *match.groups())
            if wrong:
                yield Finding(path, line_of(text, match.start(1)), "include",
                              wrong)


def why_not(tree, path, area, part, bracket, name):
    """Why a file may not include `name`; None when it may."""
    if TORCH_INCLUDE.match(name) and bracket == "<":
        return why_not_torch(path, area, part, name)
    if bracket == "<":
        if not name.startswith("sherd/") or area in PROGRAM_FOLDERS:
            return None
        if path == "include/sherd/sherd.h":
            return None
        if name in EVERYBODY_MAY_INCLUDE:
            return None
        return why_not_part(part, part_of(name[len("sherd/"):]), name)
    beside = posixpath.normpath(
        posixpath.join(posixpath.dirname(path), name))
    if is_test(name):
        return f'found "{name}", but nothing may depend on tests, move it'
    if area in PROGRAM_FOLDERS:
        if is_of_program(tree, area, name) or beside in tree:
            return None
        return f'found private "{name}", include a public header instead'
    if area == "include":
        return (f'found private "{name}" in a public header, declare what is '
                "needed or make it public")
    if beside in tree:
        return None
    target = part_of(name)
    if target is None:
        return (f'found "{name}", which is in no part, spell it from src/ '
                "(or <...> for other libraries)")
    return why_not_part(part, target, name)


def is_of_program(tree, area, name):
    """Whether a program may include "name": its own, or of a part listed."""
    parts = PROGRAM_FOLDERS[area]
    own = f"{area}/{name}" in tree or (
        name.startswith(f"{area}/") and name in tree)
    return own or part_of(name) in parts or (
        "tools" in parts and f"tools/{name}" in tree)


def why_not_torch(path, area, part, name):
    if name == "torch/torch.h" and area not in PROGRAM_FOLDERS:
        return ("found <torch/torch.h>, which costs 12 to 20 s in each file, "
                "include the narrow headers needed")
    if area in PROGRAM_FOLDERS:
        return None
    if part is None or PARTS[part].torch:
        return None
    return f"found <{name}>, but {part} does without LibTorch, move it"


def why_not_part(part, target, name):
    if part is None or target is None or target == part:
        return None
    if target.startswith(part + "/") and part not in ("ft",):
        return None
    allowed = PARTS[part].may_include
    if target in allowed or name in allowed or f"sherd/{name}" in allowed:
        return None
    only = [a for a in allowed if a.startswith(target + "/") and
            a.endswith(".h")]
    may = ", ".join(only) if only else ", ".join(allowed) or "no other part"
    return f"found {name}, but {part} may include only {may}; see STYLE.md"


def check_own_header(tree):
    """x.cpp includes its x.h first, which proves that x.h needs no other. The
    build compiles alone only the public headers that have no such source."""
    for path, text in tree.items():
        if not path.startswith(LIBRARY_FOLDERS) or not path.endswith(".cpp"):
            continue
        beside = path.removesuffix(".cpp") + ".h"
        inner = spelled(beside)
        if f"include/sherd/{inner}" in tree:
            own = f"<sherd/{inner}>"
        elif f"c10d_shm/include/sherd/{posixpath.basename(inner)}" in tree:
            own = f"<sherd/{posixpath.basename(inner)}>"
        elif beside in tree:
            own = f'"{inner}"'
        else:
            continue
        first = INCLUDE.search(text)
        if first and first.group(2) != own[1:-1]:
            yield Finding(path, line_of(text, first.start(1)), "own-header",
                          f"found {first.group(2)} before its own header, "
                          f"include {own} first")


# ---------------------------------------------------------------------------
# Files.


def check_built(tree):
    """Every .cpp is in a CMakeLists.txt, every private header is included."""
    built = set()
    for path, text in tree.items():
        if posixpath.basename(path) != "CMakeLists.txt":
            continue
        text = re.sub(r"#[^\n]*", "", text)
        for word in re.findall(r"[\w./${}+-]+\.cpp\b", text):
            word = re.sub(r"^\$\{(CMAKE|PROJECT)_SOURCE_DIR\}/", "/", word)
            word = re.sub(r"^\$\{CMAKE_CURRENT_SOURCE_DIR\}/", "", word)
            built.add(word[1:] if word.startswith("/") else posixpath.normpath(
                posixpath.join(posixpath.dirname(path), word)))
    folders = ("src/", "c10d_shm/", "tools/", "tests/", "bench/", "examples/")
    for path in tree:
        if (path.startswith(folders) and path.endswith(".cpp") and
                path not in built):
            yield Finding(path, 1, "unbuilt",
                          "found in no CMakeLists.txt, add or delete it")
    included = {m.group(2) for path, text in tree.items() if is_cpp(path)
                for m in INCLUDE.finditer(text)}
    for path in tree:
        if not path.startswith(LIBRARY_FOLDERS) or not path.endswith(".h"):
            continue
        # A name without folder means a neighbour.
        used = (spelled(path) in included or
                posixpath.basename(path) in included)
        if not used and not is_foreign(path):
            yield Finding(path, 1, "dead",
                          "found a header nobody includes, use or delete it")


def check_shape(tree):
    """Licence, ASCII, leftovers, length, #pragma once."""
    for path, text in tree.items():
        if not is_source(path):
            continue
        lines = text.splitlines()
        comment = "// " if is_cpp(path) else "# "
        first = 1 if lines and lines[0].startswith("#!") else 0
        if lines[first:first + 1] != [comment + LICENCE]:
            yield Finding(path, first + 1, "licence",
                          f"found no licence line, start with "
                          f"`{comment}{LICENCE}`")
        if len(lines) > FILE_LINES_MAX and not is_foreign(path):
            yield Finding(path, FILE_LINES_MAX + 1, "file-length",
                          f"found {len(lines)} lines, split it at "
                          f"{FILE_LINES_MAX}")
        if path.endswith(".h") and "#pragma once" not in lines:
            yield Finding(path, 1, "pragma-once",
                          "found no `#pragma once`, add it")
        for number, line in enumerate(lines, 1):
            if not line.isascii():
                bad = next(c for c in line if not c.isascii())
                yield Finding(path, number, "ascii",
                              f"found U+{ord(bad):04X}, spell it in ASCII")
            leftover = LEFTOVER.search(line)
            if leftover:
                yield Finding(path, number, "leftover",
                              f"found {leftover.group(0)}, do it or open an "
                              "issue")


def check_public_headers(tree):
    # sherd.h, which includes the others, is in no part.
    headers = sorted(p for p in tree if p.endswith(".h") and
                     posixpath.dirname(p).startswith("include/sherd/"))
    for path in headers[PUBLIC_HEADERS_MAX:]:
        yield Finding(path, 1, "public-headers",
                      f"found {len(headers)} public headers, keep at most "
                      f"{PUBLIC_HEADERS_MAX}")


# ---------------------------------------------------------------------------
# Calls.

EXCUSE = re.compile(r"//.*\bNOLINT(\([^)]*\))?: *\S")
EXCUSE_NEXT = re.compile(r"//.*\bNOLINTNEXTLINE(\([^)]*\))?: *\S")


def check_calls(tree):
    for path, text in tree.items():
        if not is_cpp(path) or is_foreign(path):
            continue
        lines = text.splitlines()
        # `= delete` and unique_ptr<T>(new T) are the two forms that may stay.
        code = re.sub(r"=\s*delete\b", "", code_of(text))
        code = re.sub(r"(unique|shared)_ptr<[^;()]*>\s*(\w+\s*)?\(\s*new\b",
                      lambda m: "\n" * m.group(0).count("\n"), code)
        for ban in BANS:
            if not ban.applies(path):
                continue
            for match in re.finditer(ban.pattern, code):
                number = line_of(code, match.start())
                if EXCUSE.search(lines[number - 1]) or (
                        number > 1 and EXCUSE_NEXT.search(lines[number - 2])):
                    continue
                found = " ".join(match.group(0).split()).rstrip("( ")
                yield Finding(path, number, ban.rule,
                              f"found `{found}`, {ban.instead}")


# ---------------------------------------------------------------------------
# Functions.


class Function(NamedTuple):
    name: str
    line: int
    lines: int


def kind_of_scope(head, outer):
    """What a brace after `head` opens inside a scope of kind `outer`."""
    if outer in ("function", "block"):
        return "block"
    if re.search(r"\b(namespace|extern)\b", head) and "(" not in head:
        return "namespace"
    before = head.split("(")[0]
    if re.search(r"\b(class|struct|union|enum)\b", before) and (
            not head.endswith(")")):
        return "class"
    return "function" if "(" in head else "block"


def name_of(head):
    head = " ".join(head.split())
    test = re.match(r"(?:TYPED_)?TEST(?:_F|_P)?\s*\(\s*(\w+)\s*,\s*(\w+)", head)
    if test:
        return ".".join(test.groups())
    match = re.search(r"((?:[\w~]|::)+|operator\s*\S+?)\s*\(", head)
    return match.group(1).replace(" ", "") if match else "?"


class Scope(NamedTuple):
    kind: str
    head: str
    begin: int  # Line of the brace.
    end: int
    around: tuple[str, ...]  # Heads of the scopes outside, the nearest last.


def scopes_of(text):
    """What braces enclose, by matching them, innermost first."""
    code = code_of(text)
    result = []
    scopes = []  # (kind, head, offset of the brace)
    head_start = 0
    for match in re.finditer(r"[{};]", code):
        offset = match.start()
        if match.group(0) == "{":
            head = re.sub(r"\b(public|private|protected)\s*:(?!:)", "",
                          code[head_start:offset]).strip()
            outer = scopes[-1][0] if scopes else "namespace"
            scopes.append((kind_of_scope(head, outer), head, offset))
        elif match.group(0) == "}" and scopes:
            kind, head, start = scopes.pop()
            result.append(Scope(
                kind, head, line_of(code, start), line_of(code, offset),
                tuple(outer for _, outer, _ in scopes)))
        head_start = offset + 1
    return result


def functions_of(text):
    """Functions at namespace or class scope. Lambdas and initialisers inside
    count with the function around them."""
    return [Function(name_of(s.head), s.begin, s.end - s.begin + 1)
            for s in scopes_of(text) if s.kind == "function"]


def read_allowed(text):
    """Lines `path function lines reason`; # starts a comment."""
    allowed = {}
    bad = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split(maxsplit=3)
        if not words:
            continue
        if len(words) < 4 or not words[2].isdigit():
            bad.append(number)
        else:
            allowed[words[0], words[1]] = (int(words[2]), number)
    return allowed, bad


def check_functions(tree):
    allowed, bad = read_allowed(tree.get(ALLOW_FILE, ""))
    for number in bad:
        yield Finding(ALLOW_FILE, number, "allow",
                      "found a line that does not read, write `path function "
                      "lines reason`")
    needed = set()
    for path, text in tree.items():
        if not is_cpp(path) or is_foreign(path):
            continue
        for function in functions_of(text):
            if function.lines <= FUNCTION_LINES_MAX:
                continue
            key = (path, function.name)
            needed.add(key)
            limit = allowed[key][0] if key in allowed else FUNCTION_LINES_MAX
            if function.lines > limit:
                yield Finding(path, function.line, "function-length",
                              f"found {function.name} with {function.lines} "
                              f"lines, split it at {limit}")
    for key, (_, number) in allowed.items():
        if key not in needed:
            yield Finding(ALLOW_FILE, number, "allow",
                          f"found {key[1]} of {key[0]}, which is short or gone, "
                          "remove the line")


# ---------------------------------------------------------------------------
# Words.

# A named namespace; what an anonymous one holds is nobody else's.
NAMED = re.compile(r"(inline\s+)?namespace\s+[\w:]+$|extern\s+\"")
TYPE = re.compile(
    r"\b(?:class|struct|union|enum(?:\s+class)?)\s+"
    r"(?:(?:\[\[\w+\]\]|alignas\([^)]*\))\s*)?([A-Z]\w*)(?!\w|::|\s*<)")


def types_of(text):
    """[(name, line)] of the types defined in named namespaces."""
    found = []
    for scope in scopes_of(text):
        head = re.sub(r"^template\s*<.*?>\s*(?=(class|struct|union)\b)", "",
                      scope.head, flags=re.DOTALL)
        match = TYPE.match(head)
        if scope.kind == "class" and match and all(
                NAMED.match(outer) for outer in scope.around):
            found.append((match.group(1), scope.begin))
    return sorted(found, key=lambda each: each[1])


def check_type_names(tree):
    """One name, one type in the whole project."""
    places = {}
    for path, text in sorted(tree.items()):
        if not is_cpp(path) or is_test(path) or is_foreign(path):
            continue
        for name, line in types_of(text):
            first = places.setdefault(name, path)
            if first != path:
                yield Finding(path, line, "type-name",
                              f"found {name}, which also names a type in "
                              f"{first}, call one of them something else")


def check_comments(tree):
    """A comment is a sentence: none begins with "Of"."""
    for path, text in tree.items():
        if not is_cpp(path) or is_test(path) or is_foreign(path):
            continue
        before = ""
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            # The first line of a comment, or of a paragraph of one.
            begins = not re.match(r"//\s*\S", before)
            if begins and re.match(r"//\s+Of\b", line):
                yield Finding(path, number, "fragment",
                              "found a comment that begins with `Of`, write a "
                              "sentence that names its subject")
            before = line


def check_test_tables(tree):
    for path, line, text in test_tables.check_test_tables(tree):
        yield Finding(path, line, "test-table", text)


# ---------------------------------------------------------------------------

RULES = (check_includes, check_own_header, check_built, check_shape,
         check_public_headers, check_calls, check_functions, check_type_names,
         check_comments, check_test_tables)


def check(tree):
    return sorted(finding for rule in RULES for finding in rule(tree))


def main(arguments):
    root = arguments[0] if arguments else os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..")
    tree = read_tree(root)
    findings = check(tree)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(tree)} files, {len(findings)} findings", file=sys.stderr)
    return 1 if findings or not tree else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
