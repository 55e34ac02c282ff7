#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the shm backend against the headers of other versions of PyTorch.

Usage: check_torch_headers.py [--compiler c++] [TORCH ...]

Each TORCH is the folder `torch` of an installed or unpacked wheel, CPU or CUDA,
of which the headers are enough. Without one, those that
SHERD_TORCH_HEADERS lists, separated by colons; where that is not set either it
ends with 77, which the test that calls it takes for a skip. Nothing is linked
or run, so a wheel whose libraries do not fit this machine will do:

    pip download --no-deps torch==2.15.0 && unzip -q torch-2.15.0*.whl 'torch/include/*'
    SHERD_TORCH_HEADERS=$PWD/torch scripts/check_torch_headers.py
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIPPED = 77
# Where `sherd` sets them for its own targets: cmake/SherdModule.cmake.
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror",
            "-Wno-subobject-linkage"]


def version_of(torch):
    for header in (torch / "include/torch/headeronly/version.h",
                   torch / "include/torch/csrc/api/include/torch/version.h"):
        if header.is_file():
            parts = re.findall(
                r"#define TORCH_VERSION_(?:MAJOR|MINOR|PATCH)\s+(\d+)",
                header.read_text(encoding="utf-8"))
            if parts:
                return ".".join(parts)
    sys.exit(f"check_torch_headers: expected the headers of PyTorch in "
             f"{torch}/include, found none")


def sources():
    """The backend's files, without their tests."""
    return sorted(path for path in (ROOT / "c10d_shm").glob("*.cpp")
                  if not path.name.endswith("_test.cpp"))


def command(compiler, torch):
    includes = [ROOT, ROOT / "src", ROOT / "include",
                ROOT / "c10d_shm" / "include"]
    system = [torch / "include",
              torch / "include" / "torch" / "csrc" / "api" / "include"]
    return ([compiler, "-std=c++20", "-fsyntax-only", "-DUSE_C10D_GLOO",
             "-DUSE_DISTRIBUTED"] + WARNINGS +
            [f"-I{path}" for path in includes] +
            [word for path in system for word in ("-isystem", str(path))] +
            ["-x", "c++", "-"])


def check(compiler, torch):
    """Whether all files compile, as one unit, as the library is built too."""
    unit = "".join(f'#include "{source}"\n' for source in sources())
    done = subprocess.run(command(compiler, torch), input=unit, text=True,
                          check=False)
    return done.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("torch", nargs="*", type=pathlib.Path)
    args = parser.parse_args()
    folders = args.torch or [
        pathlib.Path(path)
        for path in os.environ.get("SHERD_TORCH_HEADERS", "").split(":") if path]
    if not folders:
        print("check_torch_headers: SHERD_TORCH_HEADERS names no other PyTorch "
              "to compile against")
        return SKIPPED
    failures = 0
    for torch in folders:
        version = version_of(torch)
        compiles = check(args.compiler, torch.resolve())
        failures += 0 if compiles else 1
        print(f"PyTorch {version}: {len(sources())} files "
              f"{'compile' if compiles else 'do not compile'}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
