#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes manual pages and shell completions of the sherd command, made from what
the command itself prints with --help, so that they cannot differ from it.

  command_docs.py SHERD FOLDER

FOLDER gets share/man/man1/*.1, share/bash-completion/completions/sherd,
share/zsh/site-functions/_sherd and share/fish/vendor_completions.d/sherd.fish.
`cmake --install` runs this.
"""

import concurrent.futures
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

# "  -n,--ranks N     Number of ranks", also where the text begins a line later.
ENTRY = re.compile(r"^  (\S(?:.*?\S)??)(?:  +(\S.*))?$")
HEADING = re.compile(r"^([A-Z][^:]*):$")


class Entry(NamedTuple):
    name: str  # "-n,--ranks N", or a subcommand
    text: str


class Section(NamedTuple):
    heading: str
    lines: list[str]

    def entries(self):
        """Those of a list of options, subcommands or arguments, each with the
        first paragraph of its text; none of any other section."""
        found, more = [], False
        for line in self.lines:
            match = ENTRY.match(line)
            more = more and bool(line.strip())
            if match:
                found.append(Entry(match.group(1), match.group(2) or ""))
                more = True
            elif more:
                text = f"{found[-1].text} {line.strip()}".strip()
                found[-1] = found[-1]._replace(text=text)
        lists = ("Subcommands", "Positionals")
        options = all(entry.name.startswith("-") for entry in found)
        return found if options or self.heading in lists else []


class Command(NamedTuple):
    words: tuple[str, ...]  # ("checkpoint", "merge")
    about: str
    usage: list[str]
    sections: list[Section]

    def flags(self):
        """[(flag, text)]"""
        return [
            (flag, entry.text)
            for section in self.sections
            for entry in section.entries()
            if entry.name.startswith("-")
            for flag in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", entry.name)
        ]

    def subcommands(self):
        """[(name, text)]"""
        return [
            (entry.name, entry.text)
            for section in self.sections
            if section.heading == "Subcommands"
            for entry in section.entries()
        ]


def parsed(words, text):
    lines = text.rstrip().split("\n")
    begin = next(i for i, line in enumerate(lines) if line.startswith("Usage:"))
    end = begin + 1
    while end < len(lines) and lines[end].startswith("       "):
        end += 1
    sections = [Section("Description", lines[:begin])]
    for number, line in enumerate(lines[end:], end):
        match = HEADING.match(line)
        if match and not lines[number - 1].strip():
            sections.append(Section(match.group(1), []))
        else:
            sections[-1].lines.append(line)
    usage = [line.removeprefix("Usage:").strip() for line in lines[begin:end]]
    return Command(words, lines[0].split(":")[0].rstrip("."), usage, sections)


def read(sherd, words=()):
    """The command and those below it, each asked for its help."""
    done = subprocess.run(
        [sherd, *words, "--help"], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:  # A program of its own that is not built here.
        return []
    command = parsed(words, done.stdout)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        below = pool.map(
            lambda each: read(sherd, (*words, each[0])), command.subcommands()
        )
        return [command, *(each for commands in below for each in commands)]


# ---------------------------------------------------------------------------
# Manual pages.


def roff(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def man_page(command):
    name = "-".join(("sherd", *command.words))
    out = [f'.TH "{name.upper()}" 1 "" "sherd" "sherd"', ".SH NAME"]
    out += [f"{roff(name)} \\- {roff(command.about)}", ".SH SYNOPSIS", ".nf"]
    out += [*map(roff, command.usage), ".fi"]
    for section in command.sections:
        entries = section.entries()
        out.append(f'.SH "{roff(section.heading.upper())}"')
        if entries:
            for entry in entries:
                out += [".TP", f".B {roff(entry.name)}", roff(entry.text)]
        else:
            out += [".nf", *map(roff, section.lines), ".fi"]
    return "\n".join(out) + "\n"


# ---------------------------------------------------------------------------
# Completions. Each script walks through the words before the cursor and joins
# those that name a command: "checkpoint merge". A second "sherd", behind
# `sherd run -n 2 --`, begins anew.


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def choices(command):
    """[(word, text)]"""
    return [*command.subcommands(), *command.flags()]


def steps(commands):
    """Patterns of "COMMAND WORD" that lead to a longer command."""
    return [
        quoted(" ".join(command.words[:-1]) + " " + command.words[-1])
        for command in commands
        if command.words
    ]


def walk(words, commands, body):
    """What bash and zsh do alike: find the command, then do what `body` says of it."""
    cases = "".join(
        f"    {quoted(' '.join(command.words))})\n      {body(command)} ;;\n"
        for command in commands
    )
    return f"""  for word in "${{{words}}}"; do
    case "$command $word" in
      *' sherd' | */sherd) command= ;;
      {' | '.join(steps(commands))})
        command="${{command:+$command }}$word" ;;
    esac
  done
  case "$command" in
{cases}  esac
"""


def bash_completion(commands):
    def listed(command):
        return "words=" + quoted(" ".join(word for word, _ in choices(command)))

    return f"""# Completion of sherd for bash, made by scripts/command_docs.py.
_sherd() {{
  local word command= words=
{walk("COMP_WORDS[@]:1:COMP_CWORD-1", commands, listed)}\
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _sherd sherd
"""


def zsh_completion(commands):
    def described(command):
        entries = "\n".join(
            "        " + quoted(word.replace(":", "\\:") + ":" + text)
            for word, text in choices(command)
        )
        return f"entries=(\n{entries})"

    return f"""#compdef sherd
# Completion of sherd for zsh, made by scripts/command_docs.py.
_sherd() {{
  local word command=
  local -a entries
{walk("(@)words[2,CURRENT-1]", commands, described)}\
  _describe -o sherd entries || _files
}}
_sherd "$@"
"""


def fish_completion(commands):
    def line(command, word, text):
        if word.startswith("--"):
            choice = f"-l {word[2:]}"
        elif word.startswith("-"):
            choice = f"-s {word[1:]}"
        else:
            choice = f"-a {word}"
        text = text.replace("\\", "\\\\").replace("'", "\\'")
        where = f"__sherd_command_is {' '.join(command.words)}"
        return f"complete -c sherd -n '{where}' {choice} -d '{text}'"

    lines = "\n".join(
        line(command, word, text)
        for command in commands
        for word, text in choices(command)
    )
    return f"""# Completion of sherd for fish, made by scripts/command_docs.py.
function __sherd_command_is
  set -l command ''
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
      case '* sherd' '*/sherd'
        set command ''
      case {' '.join(steps(commands))}
        set command (string trim "$command $word")
    end
  end
  test "$command" = "$argv"
end
{lines}
"""


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    commands = read(sys.argv[1])
    if not commands:
        sys.exit(f"expected the help of {sys.argv[1]}, found none")
    share = pathlib.Path(sys.argv[2]) / "share"
    files = {
        "bash-completion/completions/sherd": bash_completion(commands),
        "zsh/site-functions/_sherd": zsh_completion(commands),
        "fish/vendor_completions.d/sherd.fish": fish_completion(commands),
    }
    for command in commands:
        name = "-".join(("sherd", *command.words))
        files[f"man/man1/{name}.1"] = man_page(command)
    for name, text in files.items():
        (share / name).parent.mkdir(parents=True, exist_ok=True)
        (share / name).write_text(text, encoding="utf-8")
    print(f"{len(commands)} commands")


if __name__ == "__main__":
    main()
