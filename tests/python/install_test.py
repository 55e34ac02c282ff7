# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds works away from the build folder.

Usage: install_test.py CMAKE BUILD_FOLDER SCRATCH_FOLDER
"""

import os
import pathlib
import shutil
import subprocess
import sys
import unittest

CMAKE, BUILD, SCRATCH = sys.argv[1:4]

# One rank, and the paths of sherd's files that the process has loaded.
PROGRAM = """
import re
import sherd, sherd.shm, torch
model = torch.nn.Linear(3, 2)
handle = sherd.fully_shard(model, sherd.World.single())
optimizer = torch.optim.SGD(handle.parameters(), lr=0.1)
model(torch.ones(1, 3)).sum().backward()
optimizer.step()
with open("/proc/self/maps") as maps:
    print(*sorted(set(re.findall(r"/\\S*sherd\\S*\\.so\\S*", maps.read()))))
"""


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        shutil.rmtree(SCRATCH, ignore_errors=True)
        subprocess.run([CMAKE, "--install", BUILD, "--component", "python",
                        "--prefix", SCRATCH], check=True, stdout=subprocess.DEVNULL)

    def run_python(self, *arguments, **more):
        return subprocess.run(
            [sys.executable, "-W", "ignore", *arguments], check=True, text=True,
            stdout=subprocess.PIPE, timeout=120, cwd="/",
            env={**os.environ, "PYTHONPATH": SCRATCH}, **more).stdout

    def test_everything_is_loaded_from_there(self):
        loaded = self.run_python("-c", PROGRAM).split()
        names = [pathlib.Path(path).name.split(".")[0] for path in loaded]
        self.assertEqual(sorted(names), ["_core", "_shm", "libsherd", "libsherd_c10d_shm"])
        for path in loaded:
            self.assertTrue(path.startswith(os.path.realpath(SCRATCH)), path)

    def test_the_command_is_there(self):
        self.assertIn("sherd", self.run_python("-m", "sherd", "--version"))

    def test_the_script_of_the_wheel_is_the_command(self):
        project = pathlib.Path(__file__).parents[2] / "pyproject.toml"
        self.assertIn('[project.scripts]\nsherd = "sherd.__main__:main"\n',
                      project.read_text(encoding="utf-8"))
        program = "from sherd.__main__ import main; main()"
        self.assertIn("sherd", self.run_python("-c", program, "--version"))

    def test_commands_of_the_c_plus_plus_build_are_named(self):
        for name in ("train", "checkpoint"):
            with self.assertRaises(subprocess.CalledProcessError) as raised:
                self.run_python("-m", "sherd", name, "--help", stderr=subprocess.PIPE)
            self.assertEqual(raised.exception.returncode, 2)
            self.assertIn(f"found '{name}', which only sherd's C++ build has",
                          raised.exception.stderr)

    def test_no_other_files_are_there(self):
        found = {path.suffix for path in pathlib.Path(SCRATCH).rglob("*")
                 if path.is_file() and "__pycache__" not in path.parts}
        self.assertLessEqual(found, {"", ".py", ".pyi", ".so", ".typed", ".0", ".1"})


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
