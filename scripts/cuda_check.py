#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles all that training on devices uses against PyTorch's CUDA wheels, and links and starts a program, without a GPU.

Usage: cuda_check.py [--cache FOLDER] [--compiler c++]
       cuda_check.py --installed TORCH [--program NAME] [--cuda FOLDER] [--compiler c++]
       cuda_check.py --bundle FOLDER [--cache FOLDER] [--compiler c++]

The first form downloads the wheels of VERSIONS and the CUDA headers that they need, 1.3 GB, once, into
FOLDER (default: sherd/cuda in $XDG_CACHE_HOME or ~/.cache), from where they are not removed. Without a network it says so and ends
with success. The program is linked against the newest of them. Its libraries of CUDA that only kernels call are empty
stand-ins: they are 2.9 GB, and without a GPU nothing calls them.

The second form compiles against a PyTorch that is installed, in the folder TORCH or that of "python3", with the CUDA toolkit in FOLDER (default: /usr/local/cuda), and
starts a program, which uses the GPU where there is one: cuda_check, which trains, gpu_contract, which has the contract suite of
exchanges and needs GoogleTest, or gpu_step, which measures.

The third form puts all programs, built for the oldest of VERSIONS, and what starts them into FOLDER, for a machine that has a
GPU and that PyTorch, and neither compiler nor network: sh FOLDER/run.sh. docs/design/gpu.md
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Of PyTorch, and of the NCCL that each was built with: c10d's types depend on NCCL's headers.
VERSIONS = {"2.11.0": "2.28.9", "2.13.0": "2.29.7"}
OLDEST, NEWEST = min(VERSIONS), max(VERSIONS)
CUDA_PACKAGES = ("nvidia-cuda-runtime==13.0.*", "nvidia-cuda-crt==13.0.*",
                 "nvidia-cuda-cccl==13.0.*")
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
         "autograd", "exchange", "ddp", "fsdp", "ckpt", "models")
PROGRAMS = {
    "cuda_check": ["scripts/cuda_check.cpp", "scripts/cuda_graph.cpp"],
    "gpu_contract": [
        "scripts/gpu_contract.cpp", "src/exchange/fake_transport_testing.cpp",
        *(f"src/exchange/contract_{name}.cpp" for name in (
            "testing", "backward_test", "mismatch_test", "reduce_test", "unshard_test"))],
    "gpu_step": ["bench/gpu_step.cpp", "bench/statistics.cpp"],
}
# What fault-tolerant replicas add on devices: copies to the host and back.
SESSION = [f"src/ft/replica/session/{name}.cpp" for name in (
    "gradient_layout", "replica_gradients", "state_bytes")]
BATCH = 14  # Files that are compiled as one, as CMake does it.
FLAGS = ["-std=c++20", "-fPIC", "-Wall", "-Wextra", "-Wconversion",
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
    done = cache / "done" / re.sub(r"[^\w.]", "_", f"{folder.name} {package}")
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
    for version, nccl in VERSIONS.items():
        fetch(f"torch==={version}", cache, cache / version)
        fetch(f"nvidia-nccl-cu13=={nccl}", cache, cache / version)
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
    """What is compiled as one, by name; without programs."""
    units = {"session": SESSION,
             "ranks": ["tests/support/threads_on_device.cpp"]}
    for part in PARTS:
        sources = sources_of(part)
        for at in range(0, len(sources), BATCH):
            units[f"{part}_{at // BATCH}"] = sources[at:at + BATCH]
    return units


class Toolchain:
    def __init__(self, compiler, torch, cuda_includes, work, optimise="-O0"):
        self.compiler = compiler
        self.optimise = optimise
        self.torch = torch
        self.work = work
        work.mkdir(parents=True, exist_ok=True)
        system = [torch / "include", torch / "include/torch/csrc/api/include",
                  *cuda_includes]
        if not (torch / "include/gloo/context.h").exists():
            system.append(ROOT / "src/compat/gloo_declarations")
        self.includes = [f"-I{ROOT}{folder}" for folder in (
            "", "/src", "/include", "/tests", "/tools")]
        for folder in system:
            self.includes += ["-isystem", str(folder)]

    def compile(self, name, sources, only_check):
        """One translation unit of them all: what costs are LibTorch's headers."""
        unit = self.work / f"{name}.cpp"
        unit.write_text("".join(f'#include "{ROOT / s}"\n' for s in sources),
                        encoding="utf-8")
        object_file = self.work / f"{name}.o"
        mode = ["-fsyntax-only"] if only_check else ["-c", "-o", object_file]
        run([self.compiler, *FLAGS, self.optimise, "-Wno-subobject-linkage",
             *self.includes, *mode, unit])
        return object_file

    def compile_all(self, programs, only_check):
        """These programs and the parts, as many at once as there are cores."""
        units = {name: PROGRAMS[name] for name in programs} | units_of_all()
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(
                lambda name: self.compile(name, units[name], only_check), units))
        files = sum(map(len, units.values()))
        say(f"{files} files compile with {self.torch} "
            f"({time.monotonic() - start:.0f} s)")
        return objects

    def link(self, name, objects):
        program = self.work / name
        others = {self.work / f"{other}.o" for other in PROGRAMS if other != name}
        objects = [o for o in objects if o not in others]
        libraries = self.torch / "lib"
        run([self.compiler, "-o", program, *objects,
             "-Wl,-z,lazy", "-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed",
             *(libraries / f"lib{part}.so" for part in (
                 "torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda")),
             *(["-lgmock", "-lgtest"] if name == "gpu_contract" else []),
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


def wheel_tools(cache, compiler, version, work, optimise="-O0"):
    includes = [cache / "cuda/nvidia/cu13/include",
                cache / version / "nvidia/nccl/include", cache / "stand_ins"]
    return Toolchain(compiler, cache / version / "torch", includes,
                     cache / version / work, optimise)


def check_wheels(cache, compiler):
    cuda = cache / "cuda/nvidia"
    for version in VERSIONS:
        tools = wheel_tools(cache, compiler, version, "objects")
        if version != NEWEST:
            tools.compile_all(PROGRAMS, only_check=True)
    program = tools.link("cuda_check", tools.compile_all(PROGRAMS, only_check=False))
    folders = [tools.torch / "lib", cuda / "cu13/lib",
               cache / NEWEST / "nvidia/nccl/lib"]
    stubs = cache / "stubs"
    make_stand_ins([*folders[0].glob("libtorch*.so"), folders[0] / "libc10_cuda.so"],
                   folders, compiler, stubs)
    start(program, [*folders, stubs])


def installed_torch(named):
    """Its folder; None where python3 has none that is built for CUDA."""
    if named != pathlib.Path("python3"):
        return named.resolve()
    found = subprocess.run(
        ["python3", "-c", "import torch; print(torch.version.cuda and torch.__path__[0] or '')"],
        capture_output=True, text=True, check=False).stdout.strip()
    return pathlib.Path(found) if found else None


def check_installed(torch, cuda, compiler, name):
    packages = torch.parent / "nvidia"
    includes = [cuda / "include", *packages.glob("*/include")]
    work = ROOT / "build/cuda_check"
    tools = Toolchain(compiler, torch, includes, work, "-O2")
    program = tools.link(name, tools.compile_all([name], only_check=False))
    start(program, [torch / "lib", *packages.glob("*/lib"), cuda / "lib64"])


# What starts them where the wheel's libraries lie in folders of their own.
RUN = """S=$(python3 -c 'import torch,os;print(os.path.dirname(os.path.dirname(torch.__file__)))')
export LD_LIBRARY_PATH=$S/torch/lib:$(ls -d $S/nvidia/*/lib | tr '\\n' ':')
cd "$(dirname "$0")" && ./cuda_check && ./gpu_contract --gtest_brief=1 && ./gpu_step && python3 gpu_fsdp2.py
"""


def bundle(cache, compiler, folder):
    tools = wheel_tools(cache, compiler, OLDEST, "bundle", "-O2")
    objects = tools.compile_all(PROGRAMS, only_check=False)
    folder.mkdir(parents=True, exist_ok=True)
    for name in PROGRAMS:
        run(["strip", "-o", folder / name, tools.link(name, objects)])
    for script in ("gpu_fsdp2.py", "peer_rank.py"):
        shutil.copy(ROOT / "bench" / script, folder)
    (folder / "run.sh").write_text(RUN, encoding="utf-8")
    say(f"{folder} has all: sh run.sh")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n", maxsplit=1)[0])
    default = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    parser.add_argument("--cache", type=pathlib.Path,
                        default=pathlib.Path(default) / "sherd/cuda")
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--installed", type=pathlib.Path)
    parser.add_argument("--program", choices=PROGRAMS, default="cuda_check")
    parser.add_argument("--bundle", type=pathlib.Path)
    parser.add_argument("--cuda", type=pathlib.Path, default="/usr/local/cuda")
    arguments = parser.parse_args()
    start_time = time.monotonic()
    if arguments.installed:
        torch = installed_torch(arguments.installed)
        if torch is None:
            say("skipped: python3 has no PyTorch for CUDA")
            return
        check_installed(torch, arguments.cuda,
                        arguments.compiler, arguments.program)
    else:
        arguments.cache.mkdir(parents=True, exist_ok=True)
        try:
            fetch_all(arguments.cache)
        except subprocess.CalledProcessError:
            say("skipped: PyTorch's CUDA wheels could not be downloaded")
            return
        say(f"wheels are there ({time.monotonic() - start_time:.0f} s)")
        if arguments.bundle:
            bundle(arguments.cache, arguments.compiler, arguments.bundle)
        else:
            check_wheels(arguments.cache, arguments.compiler)
    say(f"done in {time.monotonic() - start_time:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"cuda-check: {' '.join(map(str, error.cmd))[:200]} ended with {error.returncode}")
