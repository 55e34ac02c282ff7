#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completions have the flags that the commands have.

  command_docs_test.py SHERD FOLDER [options of unittest]

Makes them in FOLDER, and asks bash, and zsh and fish where they are installed,
what they would complete.
"""

import functools
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COMMANDS = ("", "run", "train", "coordinate", "simulate", "checkpoint", "checkpoint merge",
            "replica drain")  # fmt: skip
ASK = {
    "bash": """source "$1/bash-completion/completions/sherd"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sherd
        printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """compdef() {}; _files() {}
        _describe() { print -rl -- "${(@P)3%%:*}" }
        file=$1/zsh/site-functions/_sherd; shift
        words=("$@"); CURRENT=$#; source $file""",
    "fish": """source $argv[1]/fish/vendor_completions.d/sherd.fish
        complete -C "$argv[2..-1]" | string split -f1 \\t""",
}


def output_of(*command):
    return subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout


class CommandDocs(unittest.TestCase):
    sherd = folder = None

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(cls.folder, ignore_errors=True)
        output_of(sys.executable, ROOT / "scripts/command_docs.py", cls.sherd, cls.folder)
        cls.share = cls.folder / "share"

    @functools.cache
    def flags(self, command):
        shown = output_of(self.sherd, *command.split(), "--help")
        return set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", shown, re.MULTILINE))

    def completed(self, shell, *words):
        options = ("--norc",) if shell == "bash" else ()
        # What follows the text of a script: its name, or the end of options.
        then = "--" if shell == "fish" else shell
        return set(output_of(
            shell, *options, "-c", ASK[shell], then, self.share, *words
        ).split())  # fmt: skip

    def test_each_shell_completes_the_flags_of_each_command(self):
        for shell in filter(shutil.which, ASK):
            for command in COMMANDS:
                found = self.completed(shell, "sherd", *command.split(), "--")
                found = {word for word in found if word.startswith("--")}
                self.assertEqual(found - {"--"}, self.flags(command), (shell, command))

    def test_each_shell_completes_subcommands(self):
        for shell in filter(shutil.which, ASK):
            found = self.completed(shell, "sherd", "")
            self.assertLessEqual({"run", "train", "checkpoint", "replica"}, found)
            found = self.completed(shell, "sherd", "checkpoint", "")
            self.assertLessEqual({"inspect", "merge", "export"}, found)

    def test_a_command_behind_sherd_run_is_completed(self):
        for shell in filter(shutil.which, ASK):
            # fish completes no flags behind "--".
            end = () if shell == "fish" else ("--",)
            words = ("sherd", "run", "-n", "2", *end, "sherd", "train", "--wid")
            self.assertIn("--width", self.completed(shell, *words), shell)

    def test_each_command_has_a_manual_page_with_its_flags(self):
        for command in COMMANDS:
            name = "-".join(("sherd", *command.split())) + ".1"
            page = (self.share / "man/man1" / name).read_text()
            self.assertTrue(page.startswith('.TH "SHERD'), name)
            for flag in self.flags(command):
                self.assertIn(flag.replace("-", "\\-"), page, name)


if __name__ == "__main__":
    CommandDocs.sherd = sys.argv[1]
    CommandDocs.folder = pathlib.Path(sys.argv[2])
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
