#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What documents tell readers to type exists.

  shell_test.py SHERD

Reads the commands (lines indented by four blanks) of README.md, CONTRIBUTING.md
and docs/guide: subcommands and flags of sherd and torchrun are in their --help,
targets in `make help`, options of sherd's CMake in CMakeLists.txt, scripts in
the tree. Links between documents lead somewhere. Prints each that does not.
"""

import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs/guide").glob("*.md")),
]
SUBCOMMANDS = (
    ("run",),
    ("train",),
    ("bench", "step"),
    ("bench", "faults"),
    ("coordinate",),
    ("replica", "drain"),
    ("replica", "admit"),
    ("top",),
    ("metrics",),
    ("simulate",),
    ("trace", "flight"),
    ("trace", "merge"),
    ("checkpoint", "inspect"),
    ("checkpoint", "verify"),
    ("checkpoint", "diff"),
    ("checkpoint", "merge"),
    ("checkpoint", "export"),
    ("checkpoint", "import"),
    ("generate",),
    ("eval",),
    ("data", "prepare"),
    ("data", "show"),
    ("data", "verify"),
)


def commands_of(text):
    """[(line, words)] of the indented lines outside fenced blocks."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if line.startswith("    ") and not fenced:
            yield number, shlex.split(line, comments=True)


def help_of(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def flags_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", text))


def flags_before_program(words):
    """Those of a launcher: the words from "--" on are the program's."""
    end = words.index("--") if "--" in words else len(words)
    return [word.split("=")[0] for word in words[:end] if word.startswith("-")]


class Known:
    """What may be typed, asked for once."""

    def __init__(self, sherd):
        self.sherd = {
            words: flags_in(help_of(sherd, *words, "--help")) for words in SUBCOMMANDS
        }
        torchrun = help_of(sys.executable, "-m", "torch.distributed.run", "--help")
        self.torchrun = flags_in(torchrun)
        self.make = set(re.findall(r"^make (\w+)", help_of("make", "-C", ROOT, "help"), re.M))
        self.cmake = set(
            re.findall(r"SHERD_\w+", (ROOT / "CMakeLists.txt").read_text())
        )


def wrong_in_sherd(words, known):
    for subcommand, flags in known.sherd.items():
        if tuple(words[: len(subcommand)]) == subcommand:
            rest = words[len(subcommand) :]
            used = rest
            if subcommand == ("run",):
                used = flags_before_program(rest)
            bad = {word.split("=")[0] for word in used if word.startswith("-")} - flags
            return [f"sherd {' '.join(subcommand)} has no {flag}" for flag in bad]
    return [f"sherd has no {' '.join(words[:1])}"]


def wrong_in(words, known):
    """Sentences about one command; the programs in it are looked at each."""
    found = []
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        if word in ("sherd", "build/release/sherd"):
            found += wrong_in_sherd(rest, known)
        elif word in ("torchrun", "torch.distributed.run"):
            bad = set(flags_before_program(rest)) - known.torchrun
            found += [f"torchrun has no {flag}" for flag in bad]
        elif word == "make" and rest:
            found += [f"no make {rest[0]}"] * (rest[0] not in known.make)
        elif word.startswith("-DSHERD_"):
            name = word[2:].split("=")[0]
            found += [f"no option {name}"] * (name not in known.cmake)
        elif word.startswith("scripts/"):
            found += [f"no {word}"] * (not (ROOT / word).exists())
    return found


def anchors_of(path):
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def wrong_links(path, text):
    # Blocks hold code; their lines stay, to be counted.
    text = re.sub(
        r"^```.*?^```",
        lambda block: "\n" * block.group(0).count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    for match in re.finditer(r"\]\((?!https?:)([^)#]+)", text):
        if not (path.parent / match.group(1)).exists():
            yield text.count("\n", 0, match.start()) + 1, f"no {match.group(1)}"
    for match in re.finditer(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", text):
        target = path.parent / match.group(1) if match.group(1) else path
        if target.exists() and match.group(2) not in anchors_of(target):
            yield text.count("\n", 0, match.start()) + 1, f"no #{match.group(2)}"
    for match in re.finditer(r"`((?:docs|examples|scripts|src|tests)/[a-z_][\w./]*)`", text):
        if not (ROOT / match.group(1)).exists():
            yield text.count("\n", 0, match.start()) + 1, f"no {match.group(1)}"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    known = Known(sys.argv[1])
    for name, flags in known.sherd.items():
        if "--help" not in flags:
            sys.exit(f"expected the help of sherd {name}, found {flags}")
    commands, found = 0, []
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        findings = list(wrong_links(path, text))
        for line, words in commands_of(text):
            commands += 1
            findings += [(line, sentence) for sentence in wrong_in(words, known)]
        found += [f"{path.relative_to(ROOT)}:{n}: {what}" for n, what in findings]
    print(f"{commands} commands in {len(DOCUMENTS)} documents")
    if found or commands < 20:
        sys.exit("\n".join(found) or "expected at least 20 commands")


if __name__ == "__main__":
    main()
