#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sherd is built with NCCL only where all headers of CUDA are there and fit together (src/compat/CMakeLists.txt)."""

import os
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(headers LANGUAGES CXX)
function(sherd_add_module)
endfunction()
set(SHERD_TORCH ON)
set(SHERD_TORCH_ROOT ${PROJECT_SOURCE_DIR}/torch)
set(SHERD_CUDA_TOOLKIT ${PROJECT_SOURCE_DIR}/toolkit)
include(compat.cmake)
get_source_file_property(definitions nccl_backend.cpp COMPILE_DEFINITIONS)
message(STATUS "definitions: ${definitions}")
"""
OF_THE_WHEELS = {
    "cu13": ("cuda_runtime.h", "cublas_v2.h", "cusparse.h", "cusolverDn.h"),
    "nccl": ("nccl.h",)}
BESIDE_THEM = ("crt/host_defines.h", "nv/target")


def write(folder, name, text=""):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


class HeadersOfCuda(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        write(self.folder, "CMakeLists.txt", PROJECT)
        with open(os.path.join(ROOT, "src/compat/CMakeLists.txt"), encoding="utf-8") as file:
            write(self.folder, "compat.cmake", file.read())
        write(self.folder, "torch/lib/libtorch_cuda.so")
        for package, headers in OF_THE_WHEELS.items():
            for header in headers:
                write(self.folder, f"nvidia/{package}/include/{header}")
        write(self.folder, "nvidia/cu13/include/cuda_runtime.h", "#include <crt/host_defines.h>\n")

    def configured(self):
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_HOME"}
        return subprocess.run(
            ["cmake", "-S", ".", "-B", "build"], cwd=self.folder, env=environment,
            check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout

    def test_wheels_alone_lack_headers_that_are_named(self):
        out = self.configured()
        self.assertIn(
            "sherd: built without NCCL, because these headers of CUDA were not found: "
            "crt/host_defines.h, nv/target", out)
        self.assertIn("definitions: NOTFOUND", out)

    def test_headers_that_setup_adds_are_found(self):
        for header in BESIDE_THEM:
            write(self.folder, f"build/cuda_headers/nvidia/cu13/include/{header}")
        out = self.configured()
        self.assertNotIn("without NCCL", out)
        self.assertIn("definitions: USE_C10D_NCCL", out)

    def test_headers_of_a_toolkit_are_found(self):
        write(self.folder, "toolkit/include/crt/host_defines.h")
        write(self.folder, "toolkit/include/cccl/nv/target")
        self.assertIn("definitions: USE_C10D_NCCL", self.configured())

    def test_headers_that_do_not_compile_together_are_not_used(self):
        write(self.folder, "toolkit/include/crt/host_defines.h", "#error of another version\n")
        write(self.folder, "toolkit/include/nv/target")
        out = self.configured()
        self.assertIn("sherd: built without NCCL, because the headers in these folders do not compile together", out)
        self.assertIn("definitions: NOTFOUND", out)


if __name__ == "__main__":
    unittest.main()
