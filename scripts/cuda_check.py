#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles all that training on devices uses against PyTorch's CUDA wheels, and links and starts a program, without a GPU.

Usage: cuda_check.py [--cache FOLDER] [--compiler c++]
       cuda_check.py --installed TORCH [--cuda FOLDER] [--compiler c++]

The first form downloads the wheels of VERSIONS and the CUDA headers that they need, 1.3 GB, once, into
FOLDER (default: sherd/cuda in $XDG_CACHE_HOME or ~/.cache), from where they are not removed. Without a network it says so and ends
with success. The program is linked against the newest of them. Its libraries of CUDA that only kernels call are empty
stand-ins: they are 2.9 GB, and without a GPU nothing calls them.

The second form compiles against a PyTorch that is installed, with the CUDA toolkit in FOLDER (default: /usr/local/cuda), and
starts the program, which uses the GPU where there is one. docs/design/gpu.md
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSIONS = ("2.11.0", "2.13.0")
CUDA_PACKAGES = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*",
                 "nvidia-cuda-cccl==13.0.*", "nvidia-nccl-cu13==2.29.7")
# Of these libraries' headers (1 GB of wheels) PyTorch's need these types alone.
STAND_INS = {
    "cublas_v2.h": "typedef struct cublasContext* cublasHandle_t;\n"
                   "enum cublasStatus_t : int {};\n",
    "cublasLt.h": "typedef struct cublasLtContext* cublasLtHandle_t;\n",
    "cusparse.h": "typedef struct cusparseContext* cusparseHandle_t;\n"
                  "enum cusparseStatus_t : int {};\n",
    "cusolver_common.h": "enum cusolverStatus_t : int {};\n",
    "cusolverDn.h": "typedef struct cusolverDnContext* cusolverDnHandle_t;\n",
}
# The parts of the library that the program is made of: all that training on devices uses.
PARTS = ("base", "net", "plan", "shm", "compat", "device", "world", "optim",
         "autograd", "exchange", "ddp", "fsdp", "ckpt")
# What fault-tolerant replicas add on devices: copies to the host and back.
SESSION = [f"src/ft/replica/session/{name}.cpp" for name in (
    "gradient_layout", "replica_gradients", "state_bytes")]
BATCH = 8  # Files that are compiled as one, as CMake does it.
FLAGS = ["-std=c++20", "-O0", "-fPIC", "-Wall", "-Wextra", "-Wconversion",
         "-Wshadow", "-Wno-psabi", "-Werror", "-DUSE_DISTRIBUTED",
         "-DUSE_C10D_GLOO", "-DUSE_C10D_NCCL"]


def say(text):
    print(f"cuda-check: {text}", flush=True)


def run(command, **options):
    subprocess.run([str(word) for word in command], check=True, **options)


# ---- what is downloaded ----


def is_wanted(name):
    """Headers, and libraries save those of which nothing is called without a GPU."""
    in_torch = name.startswith(("torch/include/", "torch/lib/lib"))
    small = name.startswith("nvidia/") and (
        "/include/" in name or "libcudart.so" in name or "libnccl.so" in name)
    return (in_torch and "nvshmem.so" not in name and
            "cuda_linalg" not in name) or small


def fetch(package, cache, folder):
    """Unpacks a wheel into `folder`, once."""
    done = cache / "done" / re.sub(r"[^\w.]", "_", package)
    if done.exists():
        return
    wheels = cache / "wheels"
    run([sys.executable, "-m", "pip", "--isolated", "download", "--quiet",
         "--disable-pip-version-check", "--no-deps", "--timeout", "30",
         "--dest", wheels, package])
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(
                folder, [n for n in archive.namelist() if is_wanted(n)])
        wheel.unlink()
    done.parent.mkdir(exist_ok=True)
    done.touch()


def fetch_all(cache):
    for package in CUDA_PACKAGES:
        fetch(package, cache, cache / "cuda")
    for version in VERSIONS:
        fetch(f"torch==={version}", cache, cache / version)
    for name, text in STAND_INS.items():
        path = cache / "stand_ins" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#pragma once\n{text}", encoding="utf-8")


# ---- what is compiled ----


def sources_of(part):
    """What CMakeLists.txt compiles into that part, in its order."""
    text = (ROOT / "src" / part / "CMakeLists.txt").read_text(encoding="utf-8")
    listed = re.search(r"\bSOURCES\b((?:\s+[\w/]+\.cpp)+)", text)[1]
    return [f"src/{part}/{name}" for name in listed.split()]


def units_of_all():
    """What is compiled as one, by name."""
    units = {"program": ["scripts/cuda_check.cpp"], "session": SESSION}
    for part in PARTS:
        sources = sources_of(part)
        for at in range(0, len(sources), BATCH):
            units[f"{part}_{at // BATCH}"] = sources[at:at + BATCH]
    return units


class Toolchain:
    def __init__(self, compiler, torch, cuda_includes, work):
        self.compiler = compiler
        self.torch = torch
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        system = [torch / "include", torch / "include/torch/csrc/api/include",
                  *cuda_includes]
        if not (torch / "include/gloo/context.h").exists():
            system.append(ROOT / "src/compat/gloo_declarations")
        self.includes = [f"-I{ROOT}/src", f"-I{ROOT}/include"]
        for folder in system:
            self.includes += ["-isystem", str(folder)]

    def compile(self, name, sources, only_check):
        """One translation unit of them all: what costs are LibTorch's headers."""
        unit = self.work / f"{name}.cpp"
        unit.write_text("".join(f'#include "{ROOT / s}"\n' for s in sources),
                        encoding="utf-8")
        object_file = self.work / f"{name}.o"
        mode = ["-fsyntax-only"] if only_check else ["-c", "-o", object_file]
        run([self.compiler, *FLAGS, "-Wno-subobject-linkage", *self.includes,
             *mode, unit])
        return object_file

    def compile_all(self, only_check):
        """The program and the parts, as many at once as there are cores."""
        units = units_of_all()
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(
                lambda name: self.compile(name, units[name], only_check), units))
        files = sum(map(len, units.values()))
        say(f"{files} files compile with {self.torch} "
            f"({time.monotonic() - start:.0f} s)")
        return objects

    def link(self, objects):
        program = self.work / "cuda_check"
        libraries = self.torch / "lib"
        run([self.compiler, "-o", program, *objects,
             "-Wl,-z,lazy", "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed",
             *(libraries / f"lib{name}.so" for name in (
                 "torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")),
             "-lssl", "-lcrypto", "-pthread", f"-Wl,-rpath,{libraries}"])
        return program


# ---- what is started ----


def needed_by(library):
    text = subprocess.run(["readelf", "-d", library], check=True,
                          capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text)


def make_stand_ins(libraries, folders, compiler, into):
    """An empty library for each that is needed and lies in none of the folders; calls into it would fail, each by name."""
    into.mkdir(exist_ok=True)
    for library in libraries:
        for name in needed_by(library):
            own = not name.startswith(("libcu", "libnv", "libtorch_nv"))
            if own or any((folder / name).exists() for folder in folders):
                continue
            run([compiler, "-shared", "-nostdlib", "-x", "c++", "/dev/null",
                 f"-Wl,-soname,{name}", "-o", into / name])


def start(program, folders):
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = ":".join(
        [*map(str, folders), environment.get("LD_LIBRARY_PATH", "")])
    ended = subprocess.run([program], env=environment, check=False,
                           stderr=subprocess.PIPE, text=True)
    # What the loader says of each stand-in.
    for line in ended.stderr.splitlines():
        if "no version information available" not in line:
            print(line, file=sys.stderr)
    ended.check_returncode()


def check_wheels(cache, compiler):
    cuda = cache / "cuda/nvidia"
    includes = [cuda / "cu13/include", cuda / "nccl/include",
                cache / "stand_ins"]
    for version in VERSIONS:
        tools = Toolchain(compiler, cache / version / "torch", includes,
                          cache / version / "objects")
        if version != VERSIONS[-1]:
            tools.compile_all(only_check=True)
    program = tools.link(tools.compile_all(only_check=False))
    folders = [tools.torch / "lib", cuda / "cu13/lib", cuda / "nccl/lib"]
    stubs = cache / "stubs"
    make_stand_ins([*folders[0].glob("libtorch*.so"), folders[0] / "libc10_cuda.so"],
                   folders, compiler, stubs)
    start(program, [*folders, stubs])


def check_installed(torch, cuda, compiler):
    packages = torch.parent / "nvidia"
    includes = [cuda / "include", *packages.glob("*/include")]
    work = ROOT / "build/cuda_check"
    tools = Toolchain(compiler, torch, includes, work)
    program = tools.link(tools.compile_all(only_check=False))
    start(program, [torch / "lib", *packages.glob("*/lib"), cuda / "lib64"])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0])
    default = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path(default) / "sherd/cuda")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--installed", type=pathlib.Path)
    parser.add_argument("--cuda", type=pathlib.Path, default="/usr/local/cuda")
    arguments = parser.parse_args()
    start_time = time.monotonic()
    if arguments.installed:
        check_installed(arguments.installed.resolve(), arguments.cuda,
                        arguments.compiler)
    else:
        arguments.cache.mkdir(parents=True, exist_ok=True)
        try:
            fetch_all(arguments.cache)
        except subprocess.CalledProcessError:
            say("skipped: PyTorch's CUDA wheels could not be downloaded")
            return
        say(f"wheels are there ({time.monotonic() - start_time:.0f} s)")
        check_wheels(arguments.cache, arguments.compiler)
    say(f"done in {time.monotonic() - start_time:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"cuda-check: {' '.join(map(str, error.cmd))[:200]} ended with {error.returncode}")
