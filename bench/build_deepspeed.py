#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds DeepSpeed's shared-memory all-reduce for `sherd bench collectives`.

Usage: build_deepspeed.py OUTPUT.so, with a Python that has torch and deepspeed
(pip install --no-deps deepspeed is enough: nothing of it is imported). Then:
sherd bench collectives --deepspeed OUTPUT.so
"""

import importlib.util
import os
import subprocess
import sys
import tempfile

# Its all-reduce behind two C functions.
SHIM = """
#include <torch/extension.h>
#include "shm.h"
extern "C" void deepspeed_open(int size, int rank, char* addr, char* port) {
  shm_initialize(size, rank, addr, port);
}
extern "C" void deepspeed_all_reduce(void* tensor) {
  auto& data = *static_cast<torch::Tensor*>(tensor);
  all_reduce_outer_loop(data, data.numel(), static_cast<int>(data.nbytes()));
}
"""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    found = importlib.util.find_spec("deepspeed")
    if found is None:
        sys.exit("expected deepspeed in this Python, found none")
    source = os.path.join(os.path.dirname(found.origin), "ops/csrc/cpu/comm")
    from torch.utils.cpp_extension import include_paths, library_paths
    libraries = library_paths()
    with tempfile.TemporaryDirectory() as scratch:
        # Found before torch's, which would need a Python in every rank.
        os.mkdir(os.path.join(scratch, "torch"))
        with open(os.path.join(scratch, "torch", "extension.h"), "w",
                  encoding="utf-8") as file:
            file.write("#include <torch/all.h>\n")
        includes = [scratch] + include_paths() + [source]
        shim = os.path.join(scratch, "shim.cpp")
        with open(shim, "w", encoding="utf-8") as file:
            file.write(SHIM)
        # As DeepSpeed's own builder compiles it.
        subprocess.run(
            ["c++", "-O3", "-std=c++20", "-fopenmp", "-march=native",
             "-shared", "-fPIC", "-o", sys.argv[1], shim,
             os.path.join(source, "shm.cpp")] +
            [f"-I{path}" for path in includes] +
            [f"-L{path}" for path in libraries] +
            ["-ltorch_cpu", "-lc10"] +
            [f"-Wl,-rpath,{path}" for path in libraries],
            check=True)


if __name__ == "__main__":
    main()
