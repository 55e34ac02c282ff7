#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/mutate.py, on small trees, with programs that stand for ninja and tests."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "scripts"))
import mutate  # noqa: E402

TABLE = """\
# A comment.
[first-fault]
part: base
what: The answer is another one.
test: new_test Answer.*
at: src/new.cpp
- return 42;
+ return 41;

[second-fault]
part: net
what: Nobody waits.
test: new_test Wait.*
at: src/wait.cpp
-   wait();
-   use();
+   use();
"""

# Knows two targets; "builds" unless the tree holds the word `syntax`, and notes it.
NINJA = """\
#!/bin/sh
cd "$2"
case "$*" in
  *commands*) echo "earlier"; echo ": && ../bin/link -o tests/new_test && :"; exit ;;
  *targets*) ;;
  *) echo built >>builds ;;
esac
case "$*" in
  *targets*) echo "new_test: phony"; echo "all: phony" ;;
  *) if grep -rq syntax ../src; then echo "x.cpp:1: error: expected ;"; exit 1; fi ;;
esac
"""

# Compiles to what -o names, and links a program that asks what was compiled.
COMPILE = """\
#!/bin/sh
if grep -q syntax "$4"; then echo "x.cpp:1: error: expected ;"; exit 1; fi
cp "$4" "$2"
"""
LINK = """\
#!/bin/sh
test "$1" = -Wl,-z,muldefs && sed "s|../src/new.cpp|$2|" tests/new_test >"$4"
chmod +x "$4"
"""

# Fails while the answer is not 42 or nobody waits; Hang does not end then.
PROGRAM = """\
#!/bin/sh
echo "[ RUN      ] Answer.IsRight"
case "$1" in *Nothing*) echo "0 tests from 0 test suites ran."; exit 0 ;; esac
if ! grep -q "wait();" ../src/wait.cpp; then
  case "$1" in *Hang*) sleep 60 ;; *) echo "[  FAILED  ] Wait.Lasts"; exit 1 ;; esac
fi
if grep -q "return 42" ../src/new.cpp; then echo "[       OK ] Answer.IsRight"; exit 0; fi
echo "[  FAILED  ] Answer.IsRight (1 ms)"
exit 1
"""


class InATree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = folder.name
        self.put("src/new.cpp", "int f() {\n  return 42;\n}\n")
        self.put("src/wait.cpp", "void g() {\n  wait();\n  use();\n}\n")
        self.put("table.txt", TABLE)
        self.put("bin/ninja", NINJA, 0o755)
        self.put("build/tests/new_test", PROGRAM, 0o755)
        self.put(".gitignore", "build\n")
        path = f"{self.tree}/bin:{os.environ['PATH']}"
        patched = mock.patch.dict(os.environ, {"PATH": path})
        patched.start()
        self.addCleanup(patched.stop)
        self.git("init", "-q")
        self.commit()

    def put(self, path, text, mode=0o644):
        full = os.path.join(self.tree, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(full, mode)

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.tree, *arguments], check=True)

    def commit(self):
        self.git("add", "-A")
        self.git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x",
                 "--allow-empty")

    def text(self, path):
        with open(os.path.join(self.tree, path), encoding="utf-8") as file:
            return file.read()

    def run_mutate(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = mutate.main([
                "--tree", self.tree, "--build", f"{self.tree}/build",
                "--table", f"{self.tree}/table.txt",
                "--report", f"{self.tree}/build/report",
                *arguments])
        return status, out.getvalue()

    def results(self):
        records = map(json.loads, self.text("build/report").splitlines())
        return {record["id"]: record["result"] for record in records}


class Table(unittest.TestCase):
    def test_has_the_fields_of_each_fault(self):
        first, second = mutate.parse_table(TABLE)
        self.assertEqual(first.id, "first-fault")
        self.assertEqual(first.tests, (mutate.Test("new_test", "Answer.*"),))
        self.assertEqual(first.place.path, "src/new.cpp")
        self.assertEqual(second.place.find, "  wait();\n  use();")
        self.assertEqual(second.place.replace, "  use();")

    def test_refuses_what_is_no_fault(self):
        for wrong in (TABLE + TABLE, "part: base\n", "[a]\npart: b\n",
                      "[a]\n- text\n", "[a]\nnonsense\n",
                      TABLE + "at: src/new.cpp\n"):
            with self.assertRaises(mutate.Refused):
                mutate.parse_table(wrong)

    def test_of_the_project_is_one(self):
        here = os.path.dirname(os.path.abspath(mutate.__file__))
        faults = mutate.parse_table(mutate.read(f"{here}/mutations.txt"))
        self.assertGreaterEqual(len(faults), 66)
        for fault in faults:
            self.assertNotEqual(fault.place.find, fault.place.replace, fault.id)


class Output(unittest.TestCase):
    def test_failed_tests_are_named_once(self):
        text = ("[  FAILED  ] A.b (3 ms)\n[  FAILED  ] 1 test, listed below:\n"
                "[  FAILED  ] A.b\n[  FAILED  ] Worlds/C.d/3, where GetParam() = 3\n")
        self.assertEqual(mutate.failed_tests(text), ["A.b", "Worlds/C.d/3"])

    def test_a_crash_is_that_of_the_test_under_way(self):
        text = "[ RUN      ] A.b\n[       OK ] A.b (0 ms)\n[ RUN      ] A.c\n"
        self.assertEqual(mutate.failed_tests(text), ["A.c"])
        self.assertEqual(
            mutate.judge_run("a_test", -11, text),
            mutate.Outcome("found", "a_test: A.c"))


class Check(InATree):
    def test_says_where_the_text_is_missing_or_there_twice(self):
        self.put("src/new.cpp", "return 42; return 42;")
        status, out = self.run_mutate("--check")
        self.assertEqual(status, 1)
        self.assertIn("first-fault: src/new.cpp has the text 2 times", out)
        self.assertIn("1 of 2 faults", out)
        os.remove(f"{self.tree}/src/new.cpp")
        self.assertIn("first-fault: src/new.cpp is not there",
                      self.run_mutate("--check")[1])

    def test_only_selects_by_id_or_part(self):
        self.assertNotIn("second", self.run_mutate("--list", "--only", "^first")[1])
        self.assertNotIn("first", self.run_mutate("--list", "--only", "^net$")[1])
        self.assertEqual(self.run_mutate("--list", "--only", "nobody")[0], 2)


class Run(InATree):
    def test_reports_what_found_a_fault_and_restores_the_file(self):
        before = self.text("src/new.cpp")
        status, out = self.run_mutate("--only", "first")
        self.assertEqual(status, 0)
        self.assertIn("first-fault: found new_test: Answer.IsRight", out)
        self.assertIn("found 1 of 1 faults, 100.0 per cent", out)
        self.assertEqual(self.text("src/new.cpp"), before)

    def test_a_test_that_does_not_end_has_found_the_fault(self):
        self.put("table.txt", TABLE.replace("Wait", "Hang"))
        self.commit()
        _, out = self.run_mutate("--only", "second", "--limit", "0.5")
        self.assertIn("second-fault: found", out)
        self.assertIn("(took too long)", out)

    def test_reports_survivors(self):
        self.put("table.txt", TABLE.replace("return 41;", "return 42 ;"))
        self.commit()
        status, out = self.run_mutate("--only", "first")
        self.assertEqual((status, self.results()), (1, {"first-fault": "survived"}))
        self.assertIn("found 0 of 1 faults, 0.0 per cent", out)

    def test_what_does_not_compile_or_has_no_test_is_no_find(self):
        for text, result in ((TABLE.replace("41", "syntax"), "not compiled"),
                             (TABLE.replace("Answer", "Nothing"), "no test"),
                             (TABLE.replace("new_test", "old_test"), "no test")):
            self.put("other.txt", text)
            with contextlib.suppress(FileNotFoundError):
                os.remove(f"{self.tree}/build/report")
            status, _ = self.run_mutate(
                "--only", "first", "--table", f"{self.tree}/other.txt")
            self.assertEqual((status, self.results()), (1, {"first-fault": result}))

    def test_goes_on_where_it_was_interrupted(self):
        before = self.text("src/wait.cpp")
        self.run_mutate("--only", "first")
        with mock.patch.object(mutate, "try_fault", side_effect=KeyboardInterrupt):
            self.assertEqual(self.run_mutate()[0], 130)
        self.assertEqual(self.text("src/wait.cpp"), before)
        self.assertEqual(self.results(), {"first-fault": "found"})
        with open(f"{self.tree}/build/report", "a", encoding="utf-8") as file:
            file.write('{"id": "cut')
        self.assertIn("found 2 of 2", self.run_mutate()[1])

    def compiled_by(self, file):
        self.put("bin/compile", COMPILE, 0o755)
        self.put("bin/link", LINK, 0o755)
        self.put("build/compile_commands.json", json.dumps([
            {"file": file, "command": f"../bin/compile -o its.o -c {file}"}]))
        self.commit()

    def test_compiles_only_the_file_of_the_fault(self):
        source = f"{self.tree}/src/new.cpp"
        unity = f"{self.tree}/build/Unity/unity_0.cxx"
        self.put(unity, f'#include "{source}"\n')
        for file in (source, unity):
            self.compiled_by(file)
            self.put("build/report", "")
            self.put("build/builds", "")
            before = os.stat(source).st_mtime_ns
            _, out = self.run_mutate("--only", "first")
            self.assertIn("first-fault: found new_test: Answer.IsRight", out)
            self.assertEqual(self.text("build/builds"), "built\n")  # At the begin.
            self.assertEqual(os.stat(source).st_mtime_ns, before)
            self.assertFalse(os.path.exists(f"{self.tree}/build/fault.o"))
            self.assertEqual(os.listdir(f"{self.tree}/build/tests"), ["new_test"])

    def test_says_that_the_file_does_not_compile(self):
        self.put("table.txt", TABLE.replace("41", "syntax"))
        self.compiled_by(f"{self.tree}/src/new.cpp")
        self.run_mutate("--only", "first")
        self.assertEqual(self.results(), {"first-fault": "not compiled"})

    def test_builds_again_after_a_fault_that_ninja_has_built(self):
        self.put("build/builds", "")
        self.run_mutate("--only", "first")
        self.assertEqual(self.text("build/builds"), "built\n" * 3)

    def test_refuses_changes_and_reports_of_other_commits(self):
        self.run_mutate("--only", "first")
        self.put("src/new.cpp", "int f() { return 42; }\n")
        self.assertEqual(self.run_mutate("--only", "second")[0], 2)
        self.commit()
        status, out = self.run_mutate("--only", "second")
        self.assertEqual(status, 2)
        self.assertIn("name another --report", out)

    def test_the_baseline_names_tests_that_fail_or_are_none(self):
        self.assertEqual(self.run_mutate("--baseline")[0], 0)
        self.put("src/new.cpp", "return 7;\n")
        status, out = self.run_mutate("--baseline")
        self.assertEqual(status, 1)
        self.assertIn("new_test Answer.*: found", out)


if __name__ == "__main__":
    unittest.main()
