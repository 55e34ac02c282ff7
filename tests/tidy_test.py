#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every rule of scripts/tidy.py on small trees: that it fires, where, and that
it stays silent on the form it recommends."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
SCRIPT = os.path.join(ROOT, "scripts", "tidy.py")
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("tidy", SCRIPT)
tidy = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tidy)

CPP = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = CPP + "#pragma once\n"
LISTED = "# SPDX-License-Identifier: Apache-2.0\nadd(a.cpp a_test.cpp)\n"


def found(tree, rule=None):
    """`path:line: rule` of the findings, of one rule where given."""
    return [f"{f.path}:{f.line}: {f.rule}" for f in tidy.check(tree)
            if rule is None or f.rule == rule]


def includes(path, *lines, others=()):
    """Findings of rule `include` in one file with these include lines."""
    tree = {other: HEADER for other in others}
    tree[path] = CPP + "".join(f"#include {line}\n" for line in lines)
    return found(tree, "include")


class Includes(unittest.TestCase):
    def silent(self, path, *lines, others=()):
        self.assertEqual(includes(path, *lines, others=others), [])

    def fires(self, path, *lines, others=()):
        self.assertEqual(includes(path, *lines, others=others),
                         [f"{path}:2: include"])

    def test_a_part_may_include_what_the_table_says(self):
        self.silent("src/launch/a.cpp", '"base/check.h"', '"net/socket.h"',
                    '"plan/unit_id.h"', '"launch/b.h"', "<vector>")
        self.fires("src/launch/a.cpp", '"world/communicator.h"')
        self.fires("src/plan/a.cpp", '"net/socket.h"')
        self.fires("src/base/a.cpp", '"plan/unit_id.h"')

    def test_public_headers_count_as_their_part(self):
        self.silent("src/world/a.cpp", "<sherd/world/world.h>")
        self.fires("src/data/a.cpp", "<sherd/world/world.h>")
        self.fires("include/sherd/data/a.h", "<sherd/world/world.h>")

    def test_the_benchmarks_use_base_launch_and_tools_too(self):
        self.silent("bench/a.cpp", '"bench/b.h"', '"base/process.h"',
                    '"launch/port.h"', '"train/config.h"',
                    "<sherd/base/error.h>",
                    others=["bench/b.h", "tools/train/config.h"])
        self.fires("bench/a.cpp", '"exchange/exchange.h"')
        self.fires("bench/a.cpp", '"support/ranks.h"')

    def test_nothing_depends_on_the_benchmarks(self):
        self.fires("tools/main.cpp", '"bench/b.h"', others=["bench/b.h"])
        self.fires("src/plan/a.cpp", '"bench/b.h"', others=["bench/b.h"])

    def test_public_headers_keep_private_ones_out(self):
        self.fires("include/sherd/world/world.h", '"base/status.h"')

    def test_everybody_may_throw(self):
        self.silent("src/models/gpt.cpp", "<sherd/base/error.h>")
        self.fires("src/models/gpt.cpp", '"base/check.h"')

    def test_shard_sees_the_seam_and_no_transport(self):
        self.silent("src/fsdp/a.cpp", '"exchange/exchange.h"',
                    '"exchange/make_exchange.h"',
                    "<sherd/optim/named_parameters.h>")
        self.fires("src/fsdp/a.cpp", '"exchange/collective_exchange.h"')
        self.fires("src/fsdp/a.cpp", "<sherd/optim/adamw.h>")

    def test_sub_folders_are_parts_of_their_own(self):
        self.silent("src/world/a.cpp", '"shm/segment.h"')
        self.fires("src/shm/a.cpp", '"world/communicator.h"')
        self.fires("src/ft/protocol/a.cpp", '"net/socket.h"')
        self.silent("src/ft/a.cpp", '"ft/protocol/quorum.h"')
        self.fires("src/ft/a.cpp", '"ft/coordinator/server.h"')

    def test_libtorch_only_where_allowed(self):
        self.silent("src/optim/a.cpp", "<ATen/core/Tensor.h>")
        self.fires("src/plan/a.cpp", "<ATen/core/Tensor.h>")
        self.fires("src/launch/a.cpp", "<c10/util/Exception.h>")
        self.fires("include/sherd/launch/a.h", "<torch/nn/module.h>")

    def test_the_whole_of_torch_only_in_tests_and_programs(self):
        self.fires("src/optim/a.cpp", "<torch/torch.h>")
        self.fires("include/sherd/optim/a.h", "<torch/torch.h>")
        self.silent("src/optim/a_test.cpp", "<torch/torch.h>")
        self.silent("tools/train.cpp", "<torch/torch.h>")
        self.silent("tests/support/a.h", "<torch/torch.h>")

    def test_tests_include_everything_and_nobody_includes_them(self):
        self.silent("src/plan/a_test.cpp", '"exchange/exchange.h"')
        self.silent("tests/multiproc/a.cpp", '"fsdp/unit.h"')
        self.fires("src/plan/a.cpp", '"plan/testing.h"')
        self.fires("src/plan/a.cpp", '"support/ranks.h"')

    def test_programs_use_public_headers_and_their_own(self):
        self.silent("tools/run.cpp", "<sherd/launch/launch.h>",
                    '"subcommand.h"', others=["tools/subcommand.h"])
        self.silent("tools/train/a.cpp", '"train/a.h"',
                    others=["tools/train/a.h"])
        self.silent("tools/run.cpp", '"base/log.h"', others=["src/base/log.h"])
        self.fires("tools/run.cpp", '"net/loop.h"', others=["src/net/loop.h"])

    def test_the_umbrella_includes_all(self):
        self.silent("include/sherd/sherd.h", "<sherd/world/world.h>",
                    "<sherd/optim/adamw.h>")

    def test_the_backend_is_a_library_of_its_own(self):
        self.silent("c10d_shm/a.cpp", "<sherd/c10d_shm.h>", '"shm/segment.h"',
                    '"c10d_shm/communicator/b.h"', "<ATen/core/Tensor.h>")
        self.fires("c10d_shm/a.cpp", '"world/rendezvous.h"')
        self.fires("c10d_shm/communicator/a.cpp", '"c10d_shm/backend.h"')
        self.fires("c10d_shm/communicator/a.cpp", "<ATen/core/Tensor.h>")
        self.fires("src/world/a.cpp", '"c10d_shm/backend.h"')
        self.fires("c10d_shm/include/sherd/c10d_shm.h", '"c10d_shm/backend.h"')
        self.fires("python/bindings/a.cpp", '"c10d_shm/backend.h"')

    def test_unknown_folders_are_named(self):
        self.assertEqual(includes("src/misc/a.cpp", "<vector>"),
                         ["src/misc/a.cpp:1: include"])

    def test_the_message_says_what_is_allowed(self):
        tree = {"src/fsdp/a.cpp": CPP + '#include "exchange/fake_transport.h"\n'}
        text = [f.text for f in tidy.check(tree) if f.rule == "include"][0]
        self.assertIn("exchange/fake_transport.h", text)
        self.assertIn("exchange/exchange.h, exchange/make_exchange.h", text)


class OwnHeader(unittest.TestCase):
    def lines(self, path, *lines):
        tree = {path: CPP + "".join(f"#include {line}\n" for line in lines),
                "src/base/a.h": HEADER, "include/sherd/world/b.h": HEADER}
        return found(tree, "own-header")

    def test_it_comes_first(self):
        self.assertEqual(
            self.lines("src/base/a.cpp", '"base/a.h"', "<vector>"), [])
        self.assertEqual(
            self.lines("src/base/a.cpp", "<vector>", '"base/a.h"'),
            ["src/base/a.cpp:2: own-header"])
        self.assertEqual(
            self.lines("src/world/b.cpp", "<vector>", "<sherd/world/b.h>"),
            ["src/world/b.cpp:2: own-header"])

    def test_a_source_without_header_is_free(self):
        self.assertEqual(self.lines("src/base/c.cpp", "<vector>"), [])


class Built(unittest.TestCase):
    def test_files_in_no_list(self):
        tree = {"src/base/CMakeLists.txt": LISTED, "src/base/a.cpp": CPP,
                "src/base/a_test.cpp": CPP, "src/base/b.cpp": CPP,
                "tests/c.cpp": CPP}
        self.assertEqual(found(tree, "unbuilt"), [
            "src/base/b.cpp:1: unbuilt", "tests/c.cpp:1: unbuilt"])

    def test_paths_in_lists(self):
        tree = {"tools/CMakeLists.txt":
                "add(train/a.cpp ${CMAKE_SOURCE_DIR}/tests/b.cpp\n"
                "  ../tests/c.cpp ${CMAKE_CURRENT_SOURCE_DIR}/d.cpp) # e.cpp\n",
                "tools/train/a.cpp": CPP, "tests/b.cpp": CPP,
                "tests/c.cpp": CPP, "tools/d.cpp": CPP, "tools/e.cpp": CPP}
        self.assertEqual(found(tree, "unbuilt"), ["tools/e.cpp:1: unbuilt"])

    def test_headers_nobody_includes(self):
        tree = {"src/base/a.h": HEADER, "src/base/b.h": HEADER,
                "src/base/c.cpp": CPP + '#include "base/a.h"\n'}
        self.assertEqual(found(tree, "dead"), ["src/base/b.h:1: dead"])


class Shape(unittest.TestCase):
    def test_licence(self):
        tree = {"src/base/a.h": "#pragma once\n", "scripts/go": "echo\n",
                "CMakeLists.txt": "project(x)\n",
                "scripts/fine": "#!/bin/sh\n# SPDX-License-Identifier: "
                                "Apache-2.0\n",
                "tests/a.py": "#!/usr/bin/env python3\nprint()\n"}
        self.assertEqual(found(tree, "licence"), [
            "CMakeLists.txt:1: licence", "scripts/go:1: licence",
            "src/base/a.h:1: licence", "tests/a.py:2: licence"])

    def test_pragma_once(self):
        self.assertEqual(found({"src/base/a.h": CPP}, "pragma-once"),
                         ["src/base/a.h:1: pragma-once"])
        self.assertEqual(found({"src/base/a.h": HEADER}, "pragma-once"), [])

    def test_ascii(self):
        tree = {"src/base/a.cpp": CPP + "// caf\u00e9\n"}
        self.assertEqual(found(tree, "ascii"), ["src/base/a.cpp:2: ascii"])
        self.assertIn("U+00E9", [f.text for f in tidy.check(tree)
                                 if f.rule == "ascii"][0])

    def test_leftovers(self):
        for word in ("TO" + "DO", "FIX" + "ME", "XX" + "X"):
            tree = {"src/base/a.cpp": CPP + f"// {word}: later\n"}
            self.assertEqual(found(tree, "leftover"),
                             ["src/base/a.cpp:2: leftover"])
        tree = {"src/base/a.cpp": CPP + 'auto t = "/tmp/aXXXXXX";\n'}
        self.assertEqual(found(tree, "leftover"), [])

    def test_file_length(self):
        tree = {"src/base/a.cpp": CPP + "\n" * 699}
        self.assertEqual(found(tree, "file-length"), [])
        tree["src/base/a.cpp"] += "\n"
        self.assertEqual(found(tree, "file-length"),
                         ["src/base/a.cpp:701: file-length"])

    def test_public_headers(self):
        tree = {f"include/sherd/base/a{i:02}.h": HEADER
                for i in range(tidy.PUBLIC_HEADERS_MAX)}
        self.assertEqual(found(tree, "public-headers"), [])
        tree["include/sherd/base/b.h"] = HEADER
        self.assertEqual(found(tree, "public-headers"),
                         ["include/sherd/base/b.h:1: public-headers"])

    def test_other_projects_declarations_are_left_alone(self):
        tree = {"src/compat/gloo_declarations/gloo/context.h":
                HEADER + "void f() { new int; }\n"}
        self.assertEqual(found(tree), [])


class Calls(unittest.TestCase):
    def rules(self, path, line):
        tree = {path: CPP + line + "\n"}
        quiet = ("unbuilt", "dead", "pragma-once")
        return [f.rule for f in tidy.check(tree) if f.rule not in quiet]

    def test_environment(self):
        line = 'auto x = std::getenv("A");'
        self.assertEqual(self.rules("src/world/a.cpp", line), ["getenv"])
        self.assertEqual(self.rules("tests/a.cpp", line), ["getenv"])
        self.assertEqual(self.rules("tools/a.cpp", line), [])
        self.assertEqual(self.rules("bench/a.cpp", line), [])
        self.assertEqual(self.rules("src/base/rank_environment.cpp", line), [])

    def test_sleep_in_tests(self):
        for line in ("std::this_thread::sleep_for(d);", "usleep(3);",
                     "::sleep(1);"):
            self.assertEqual(self.rules("src/world/a_test.cpp", line), ["sleep"])
            self.assertEqual(self.rules("tests/a.cpp", line), ["sleep"])
            self.assertEqual(self.rules("src/world/a.cpp", line), [])

    def test_clock(self):
        line = "auto t = std::chrono::steady_clock::now();"
        self.assertEqual(self.rules("src/world/a.cpp", line), ["clock"])
        self.assertEqual(self.rules("src/world/a_test.cpp", line), ["clock"])
        self.assertEqual(self.rules("src/base/clock.h", line), [])
        self.assertEqual(self.rules("tools/a.cpp", line), [])

    def test_stdout(self):
        for line in ("std::cout << 1;", 'printf("a");', 'std::puts("a");'):
            self.assertEqual(self.rules("src/world/a.cpp", line), ["stdout"])
            self.assertEqual(self.rules("tools/a.cpp", line), [])
        for line in ('std::fprintf(stderr, "a");', 'snprintf(b, 1, "a");'):
            self.assertEqual(self.rules("src/world/a.cpp", line), [])

    def test_new(self):
        self.assertEqual(self.rules("src/world/a.cpp", "auto* x = new int;"),
                         ["new"])
        for line in ("std::unique_ptr<A>(new A(1));",
                     "std::unique_ptr<A> a(new A(1));", "::new (p) Page();",
                     "int renewal = 1;"):
            self.assertEqual(self.rules("src/world/a.cpp", line), [])

    def test_delete(self):
        for line in ("delete x;", "delete[] x;"):
            self.assertEqual(self.rules("src/world/a.cpp", line), ["delete"])
        for line in ("A(const A&) = delete;", "A& operator=(A&&) =\n delete;"):
            self.assertEqual(self.rules("src/world/a.cpp", line), [])

    def test_rand(self):
        for line in ("int x = rand();", "std::srand(1);"):
            self.assertEqual(self.rules("tests/a.cpp", line), ["rand"])
        for line in ("auto x = torch::rand({2});", "auto y = at::rand(s);"):
            self.assertEqual(self.rules("tests/a.cpp", line), [])

    def test_comments_and_strings_are_not_calls(self):
        for line in ("// a new one: rand()", 'auto s = "delete me";',
                     "/* new\n new */", 'auto r = R"(new x)";',
                     "int n = 1'000; char c = '\"'; int m = 2'000;"):
            self.assertEqual(self.rules("src/world/a.cpp", line), [])

    def test_lines_stay_right_after_long_comments(self):
        tree = {"src/world/a.cpp": CPP + "/* a\n b */\n#define X \\\n 1\n"
                                        "int* x = new int;\n"}
        self.assertEqual(found(tree, "new"), ["src/world/a.cpp:6: new"])

    def test_an_excuse_needs_a_reason(self):
        line = "auto* x = new int;"
        self.assertEqual(
            self.rules("src/world/a.cpp", line + "  // NOLINT: by hand"), [])
        self.assertEqual(
            self.rules("src/world/a.cpp",
                       "// NOLINTNEXTLINE(new): by hand\n" + line), [])
        self.assertEqual(self.rules("src/world/a.cpp", line + "  // NOLINT"),
                         ["new"])


def body(lines):
    """A body of so many lines, from { to }."""
    return "{\n" + "  f();\n" * (lines - 2) + "}\n"


class Functions(unittest.TestCase):
    def names(self, text):
        return [(f.name, f.lines) for f in tidy.functions_of(text)]

    def test_names_and_lengths(self):
        text = ("namespace a {\nclass B : public C {\n public:\n"
                "  explicit B(int x) : x_(x) {}\n  int y() const {\n"
                "    if (x_) {\n      return 1;\n    }\n    return 2;\n  }\n"
                "  int x_ = 0;\n};\n"
                "const std::vector<int> kNumbers = {\n  1,\n};\n"
                "std::vector<int> D::make(\n    int n) {\n  return {n};\n}\n"
                "TEST(Suite, Name) {\n  auto f = [] { return 1; };\n}\n}\n")
        self.assertEqual(self.names(text), [
            ("B", 1), ("y", 6), ("D::make", 3), ("Suite.Name", 3)])

    def test_braces_in_strings_do_not_count(self):
        self.assertEqual(self.names('void f() {\n  g("{{", \'{\');\n}\n'),
                         [("f", 3)])

    def test_the_limit(self):
        tree = {"src/base/a.cpp": CPP + "void f() " + body(70)}
        self.assertEqual(found(tree, "function-length"), [])
        tree = {"src/base/a.cpp": CPP + "void f() " + body(71)}
        self.assertEqual(found(tree, "function-length"),
                         ["src/base/a.cpp:2: function-length"])

    def test_the_ratchet(self):
        tree = {"src/base/a.cpp": CPP + "void f() " + body(80),
                tidy.ALLOW_FILE: "# c\nsrc/base/a.cpp f 80 one story\n"}
        self.assertEqual(found(tree, "function-length"), [])
        self.assertEqual(found(tree, "allow"), [])
        tree["src/base/a.cpp"] = CPP + "void f() " + body(81)
        self.assertEqual(found(tree, "function-length"),
                         ["src/base/a.cpp:2: function-length"])
        tree["src/base/a.cpp"] = CPP + "void f() " + body(60)
        self.assertEqual(found(tree, "allow"), [f"{tidy.ALLOW_FILE}:2: allow"])

    def test_an_exception_needs_a_reason(self):
        tree = {tidy.ALLOW_FILE: "src/base/a.cpp f 80\n"}
        self.assertEqual(found(tree, "allow"), [f"{tidy.ALLOW_FILE}:1: allow"])


class TypeNames(unittest.TestCase):
    def names(self, text):
        return [name for name, _ in tidy.types_of(text)]

    def twice(self, path, text):
        tree = {"src/base/a.h": HEADER + "namespace a {\nclass Link {};\n}\n",
                path: CPP + text}
        return found(tree, "type-name")

    def test_what_is_a_type_of_a_namespace(self):
        text = ("namespace a::b {\nstruct A : B<C> { struct Inner {}; };\n"
                "enum class D : int { kOne };\nclass Forward;\n"
                "template <class T, typename U = std::vector<int>>\n"
                "class E final {};\nstruct alignas(64) F {};\n"
                "template <>\nstruct Hash<A> {};\nstruct A::Nested {};\n"
                "namespace {\nstruct Hidden {};\n}\n"
                "void f() { struct Local {}; }\n}\n")
        self.assertEqual(self.names(text), ["A", "D", "E", "F"])

    def test_one_name_for_two_types(self):
        self.assertEqual(
            self.twice("src/net/b.cpp", "namespace b {\nstruct Link {};\n}\n"),
            ["src/net/b.cpp:3: type-name"])
        self.assertEqual(
            self.twice("src/net/b.cpp", "namespace b {\nstruct Wire {};\n}\n"),
            [])

    def test_tests_and_anonymous_namespaces_are_free(self):
        text = "namespace b {\nstruct Link {};\n}\n"
        self.assertEqual(self.twice("src/net/b_test.cpp", text), [])
        self.assertEqual(self.twice(
            "src/net/b.cpp", "namespace {\nstruct Link {};\n}\n"), [])


class Comments(unittest.TestCase):
    def fires(self, *lines, path="tools/a.cpp"):
        tree = {path: CPP + "".join(line + "\n" for line in lines)}
        return found(tree, "fragment")

    def test_none_begins_with_of(self):
        self.assertEqual(self.fires("", "// Of the rank."),
                         ["tools/a.cpp:3: fragment"])
        self.assertEqual(self.fires("//", "// Of the rank."),
                         ["tools/a.cpp:3: fragment"])
        self.assertEqual(self.fires("", "// The mean", "// Of all ranks."), [])
        self.assertEqual(self.fires("", "// Often enough."), [])

    def test_tests_are_free(self):
        self.assertEqual(self.fires("", "// Of it.", path="tests/a.cpp"), [])


class TestTables(unittest.TestCase):
    TESTS = ("Sums.T01AreExact", "Sums.AreFast", "tests/a_test.py")

    def wrong(self, path, *rows, ids=("T01",), tests=TESTS):
        return [text for _, text in tidy.test_tables.check_table(
            path, "\n".join(rows), ids, tests)]

    def number(self, *rows, **options):
        return self.wrong(tidy.test_tables.NUMBERS, *rows, **options)

    def feature(self, cells):
        return self.wrong(tidy.test_tables.FEATURES, f"| A1 | {cells} |", ids=("A1",))

    def test_names_are_those_of_the_sources(self):
        tree = {"a_test.cpp": "TEST(A, B) {}\nTEST_P(\n    C, T01D) {\n}\n",
                "tests/a_test.py": "", "b.md": "TEST(E, F)"}
        self.assertEqual(tidy.test_tables.tests_of(tree),
                         {"A.B", "C.T01D", "tests/a_test.py"})
        self.assertEqual(tidy.test_tables.numbers_in("A.T10B12T21Of3"), ["T10", "T21"])

    def test_a_number_has_a_test_that_exists_or_a_reason(self):
        for tests in ("`Sums.AreFast`, `Sums.T01AreExact`", "`tests/a_test.py`"):
            self.assertEqual(self.number(f"| T01 | sums | {tests} |"), [])
        self.assertIn("names Sums.AreGone, which no source has",
                      self.number("| T01 | sums | `Sums.AreGone` |")[0])
        self.assertIn("names no test", self.number("| T01 | sums | soon |")[0])
        later = "| T01 | sums | Later: with GPUs |"
        self.assertEqual(self.number(later, tests=("Sums.AreFast",)), [])
        self.assertIn("name it: Sums.T01AreExact", self.number(later)[0])

    def test_each_number_has_one_row_and_each_name_a_number_of_the_table(self):
        row = "| T01 | sums | `Sums.T01AreExact` |"
        self.assertEqual(self.number(), ["found no row T01, write one"])
        self.assertIn("found T01 twice", self.number(row, row)[0])
        self.assertIn("found T02 but", self.number(row, row.replace("T01 |", "T02 |"))[0])
        self.assertIn("no row T66", self.number(row, tests=(*self.TESTS, "A.T66B"))[0])

    def test_a_feature_that_works_has_a_test(self):
        self.assertEqual(self.feature("FSDP | shard | works | `Sums.AreFast`"), [])
        self.assertIn("works and names no test", self.feature("a | b | works | c")[0])
        self.assertEqual(self.feature("a | b | not yet | "), [])
        self.assertIn("say why", self.feature("a | b | not needed | ")[0])
        self.assertIn("'perhaps'", self.feature("a | b | perhaps | c")[0])
        self.assertIn("4 cells", self.feature("a | b | works")[0])


class Command(unittest.TestCase):
    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            return subprocess.run([sys.executable, SCRIPT, root], text=True,
                                  capture_output=True, check=False)

    def test_findings_are_lines_and_exit_is_1(self):
        done = self.run_on({"src/base/a.h": CPP,
                            "build/b.h": "", ".venv/c.py": ""})
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout.splitlines(), [
            "src/base/a.h:1: dead: found a header nobody includes, use or "
            "delete it",
            "src/base/a.h:1: pragma-once: found no `#pragma once`, add it"])

    def test_a_clean_tree_prints_nothing(self):
        done = self.run_on({"src/base/CMakeLists.txt": LISTED,
                            "src/base/a.cpp": CPP + "int f() { return 1; }\n"})
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_an_empty_tree_is_no_success(self):
        self.assertEqual(self.run_on({}).returncode, 1)


if __name__ == "__main__":
    unittest.main()
