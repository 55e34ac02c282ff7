#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` leaves is what a user's project needs, and no more.

  install_test.py --cmake CMAKE --compiler CXX --build BUILD --torch-dir DIR
                  [options of unittest]

Installs a built tree into a scratch folder of it, moves that, and configures,
builds and runs the project beside this file against it.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Packages of the command and the tests, by their CMake names and headers.
NOT_FOR_THE_LIBRARY = {
    "CLI11": "/CLI/",
    "GTest": "/gtest/",
    "benchmark": "/benchmark/",
}
NEEDED_OF_TORCH = (
    "include/ATen/ATen.h",
    "lib/libtorch_cpu.so",
    "lib/libc10.so",
    "share/cmake/Torch/TorchConfig.cmake",
)


def run(*command):
    """The exit status and everything shown, as one line for searching."""
    # Folders named by the caller's shell would be searched, too.
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("CMAKE_PREFIX_PATH", "Torch_DIR", "sherd_DIR")
    }
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=clean,
    )
    return done.returncode, " ".join(done.stdout.split())


class Install(unittest.TestCase):
    options = None

    @classmethod
    def setUpClass(cls):
        cls.scratch = cls.options.build / "tests" / "install"
        shutil.rmtree(cls.scratch, ignore_errors=True)
        first = cls.scratch / "first"
        cls.succeed(cls.options.cmake, "--install", cls.options.build, "--prefix", first)
        # Moved: nothing in it may name the folder it was installed to.
        cls.prefix = cls.scratch / "moved"
        first.rename(cls.prefix)

    @classmethod
    def succeed(cls, *command):
        status, shown = run(*command)
        if status != 0:
            raise AssertionError(f"{command} ended with {status}: {shown}")
        return shown

    def consumer(self, *defines):
        return (
            self.options.cmake, "-S", HERE, "-B", self.scratch / "consumer",
            "-G", "Ninja", "--fresh", "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_PREFIX_PATH={self.prefix}",
            f"-DCMAKE_CXX_COMPILER={self.options.compiler}",
            f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja')}",
            # What other LibTorch the machine may have is not looked for.
            "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF",
            "-DCMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH=OFF", *defines,
        )  # fmt: skip

    def refused(self, *defines):
        status, shown = run(*self.consumer(*defines))
        self.assertNotEqual(status, 0, shown)
        return shown

    def torch_folder(self, version):
        """What looks like a LibTorch of that version."""
        folder = self.scratch / f"torch-{version}"
        for name in NEEDED_OF_TORCH:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
        cmake = folder / "share/cmake/Torch"
        (cmake / "TorchConfigVersion.cmake").write_text(
            f'set(PACKAGE_VERSION "{version}")\n'
        )
        return cmake

    def test_a_project_builds_and_trains_in_program_and_plugin(self):
        # Torch found as a prefix, not by Torch_DIR, which other tests use.
        torch = self.options.torch_dir.parent.parent.parent
        shown = self.succeed(
            *self.consumer(f"-DCMAKE_PREFIX_PATH={self.prefix};{torch}")
        )
        version = re.search(r"sherd_VERSION=(\S+)", shown).group(1)
        sherd = self.prefix / "bin" / "sherd"
        self.assertEqual(self.succeed(sherd, "--version"), f"sherd {version}")

        folder = self.scratch / "consumer"
        self.succeed(self.options.cmake, "--build", folder)

        shown = self.succeed(
            sherd, "run", "-n", "2", "--", folder / "consumer", folder / "libplugin.so"
        )
        self.assertEqual(shown.count("loss"), 2, shown)
        self.succeed(folder / "consumer", folder / "libplugin.so")  # One rank.

        # The backend alone, without the engine's library and its fallback.
        self.assertEqual(self.succeed(folder / "backend"), "backend shm")
        linked = self.succeed("ldd", folder / "backend")
        self.assertIn("libsherd_c10d_shm.so", linked)
        self.assertNotIn("libsherd.so", linked)

        self.expect_cpp_library_first(folder / "consumer")

    def expect_cpp_library_first(self, file):
        """libtorch.so of wheels for CUDA exports a std::filesystem::remove_all() that crashes."""
        needed = re.findall(r"\(NEEDED\) Shared library: \[(\S+?)\.so", self.succeed("readelf", "-d", file))
        self.assertLess(needed.index("libstdc++"), needed.index("libtorch"), needed)

    def test_the_cpp_library_is_searched_before_libtorch(self):
        self.expect_cpp_library_first(self.prefix / "lib" / "libsherd.so")

    def test_the_library_is_installed_once_and_shared(self):
        # A static one would bring its own dispatch fallback with each user.
        found = {path.name for path in self.prefix.glob("lib/**/libsherd*")}
        self.assertIn("libsherd.so", found)
        self.assertIn("libsherd_c10d_shm.so", found)
        self.assertEqual({name for name in found if ".so" not in name}, set())

    def test_no_file_names_the_folder_of_the_build_or_of_the_install(self):
        for path in self.prefix.glob("lib/cmake/**/*.cmake"):
            text = path.read_text()
            for folder in (ROOT, self.options.build, self.scratch):
                self.assertNotIn(str(folder), text, path)

    def test_the_installed_command_trains(self):
        self.succeed(
            self.prefix / "bin" / "sherd", "train", "--steps", "1", "--layers", "1",
            "--width", "32", "--heads", "2", "--seq", "16", "--sample-tokens", "0",
            "--data", ROOT / "LICENSE", "--run", self.scratch / "run",
        )  # fmt: skip

    def test_the_installed_command_finds_what_bench_runs(self):
        build_type = re.search(
            r"CMAKE_BUILD_TYPE:STRING=(\w+)",
            (self.options.build / "CMakeCache.txt").read_text(),
        ).group(1)
        sherd = self.prefix / "bin" / "sherd"
        words = (sherd, "bench", "step", "--work", "tiny", "--rounds-max", "1",
                 "--block-steps", "2", "--peers", "none")  # fmt: skip
        if build_type == "Release":
            self.assertIn("1 rounds are done", self.succeed(*words))
        else:
            self.assertIn("expected a Release build", run(*words)[1])
        self.succeed(sherd, "bench", "collectives", "--rounds", "1",
                     "--block-ms", "1", "--bytes-max", "65536")  # fmt: skip
        self.assertTrue((self.prefix / "share/sherd/bench/peer_rank.py").exists())

    def test_licence_and_documents_are_installed(self):
        documents = self.prefix / "share" / "doc" / "sherd"
        for name in ("LICENSE", "README.md"):
            self.assertEqual(
                (documents / name).read_bytes(), (ROOT / name).read_bytes()
            )
        guide = {path.name for path in (documents / "docs/guide").iterdir()}
        self.assertEqual(guide, {path.name for path in (ROOT / "docs/guide").iterdir()})

    def test_manual_pages_and_completions_are_there(self):
        share = self.prefix / "share"
        for name in ("man/man1/sherd-train.1",
                     "bash-completion/completions/sherd",
                     "zsh/site-functions/_sherd",
                     "fish/vendor_completions.d/sherd.fish"):  # fmt: skip
            self.assertGreater((share / name).stat().st_size, 0, name)

    def test_the_guides_project_configures_with_the_guides_prefix(self):
        guide = (ROOT / "docs/guide/start.md").read_text()
        project = self.scratch / "guide"
        project.mkdir()
        text = re.search(r"```cmake\n(.*?)```", guide, re.DOTALL).group(1)
        (project / "CMakeLists.txt").write_text(text)
        (project / "train.cpp").touch()
        # torch.utils.cmake_prefix_path is the folder above Torch_DIR.
        prefixes = f"{self.prefix};{self.options.torch_dir.parent}"
        self.succeed(
            *self.consumer(f"-DCMAKE_PREFIX_PATH={prefixes}"),
            "-S", project, "-B", project / "build",
        )  # fmt: skip

    def test_without_libtorch_the_message_says_how_to_name_one(self):
        shown = self.refused()
        self.assertIn("expected LibTorch, found none", shown)
        self.assertIn("Torch_DIR", shown)
        self.assertIn("CMAKE_PREFIX_PATH", shown)

    def test_a_folder_that_is_no_libtorch_is_refused_by_name(self):
        shown = self.refused(f"-DTorch_DIR={self.scratch}/a/b/c")
        self.assertIn("expected share/cmake/Torch/TorchConfigVersion.cmake", shown)
        self.assertIn("Torch_DIR", shown)

    def test_a_libtorch_of_another_version_is_refused(self):
        shown = self.refused(f"-DTorch_DIR={self.torch_folder('1.13.1')}")
        self.assertIn("with which this sherd was built, found 1.13.1", shown)

    def test_a_newer_sherd_than_installed_is_refused(self):
        shown = self.refused(
            f"-DTorch_DIR={self.options.torch_dir}", "-DCONSUMER_WANTS=99.0"
        )
        self.assertIn("99.0", shown)


class LibraryOnly(unittest.TestCase):
    options = None

    def test_without_tools_little_is_looked_for(self):
        folder = self.options.build / "tests" / "library_only"
        disabled = [
            f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in NOT_FOR_THE_LIBRARY
        ]
        status, shown = run(
            self.options.cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", "--fresh",
            f"-DCMAKE_CXX_COMPILER={self.options.compiler}",
            "-DSHERD_TOOLS=OFF", f"-DTorch_DIR={self.options.torch_dir}", *disabled,
        )  # fmt: skip
        self.assertEqual(status, 0, shown)
        targets = subprocess.run(
            ["ninja", "-C", folder, "-t", "targets", "all"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        objects = re.findall(r"^(\S+[.]o):", targets, re.MULTILINE)
        self.assertGreater(len(objects), 40)
        library = ("src/", "c10d_shm/", "CMakeFiles/sherd_torch_module_pch.dir/")
        self.assertEqual([o for o in objects if not o.startswith(library)], [])
        linked = re.findall(r"^(\S+): CXX_(?!STATIC)\w+_LINKER", targets, re.MULTILINE)
        self.assertEqual(
            sorted(name.split(".so")[0] for name in linked),
            ["libsherd", "libsherd_c10d_shm"],
        )

    def test_the_librarys_sources_read_no_header_of_the_others(self):
        """From what the compiler said it read when this tree was built."""
        deps = subprocess.run(
            ["ninja", "-C", self.options.build, "-t", "deps"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        objects = 0
        for block in deps.split("\n\n"):
            name, *headers = block.split("\n")
            if not re.match(r"src/(\w+)/CMakeFiles/sherd_\1\.dir/", name):
                continue
            objects += 1
            for header in headers:
                for package in NOT_FOR_THE_LIBRARY.values():
                    self.assertNotIn(package, header, name)
        self.assertGreater(objects, 20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cmake", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--torch-dir", type=pathlib.Path, required=True)
    options, rest = parser.parse_known_args()
    Install.options = LibraryOnly.options = options
    unittest.main(argv=sys.argv[:1] + rest, verbosity=2)


if __name__ == "__main__":
    main()
