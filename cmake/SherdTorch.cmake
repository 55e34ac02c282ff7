# SPDX-License-Identifier: Apache-2.0
# Target `sherd_torch`: LibTorch for sherd's own files.
include(SherdLibTorch)
sherd_find_libtorch()
if(SHERD_TORCH_PROBLEM)
  message(FATAL_ERROR "${SHERD_TORCH_PROBLEM} (scripts/setup installs one)")
endif()
add_library(sherd_torch INTERFACE)
sherd_set_libtorch(sherd_torch)
# The wheel compiles its own c10d with Gloo; the macro makes its headers say so.
target_compile_definitions(sherd_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
# gloo's own headers are in no wheel; five declarations stand in for them.
if(NOT EXISTS "${SHERD_TORCH_ROOT}/include/gloo/context.h")
  target_include_directories(sherd_torch SYSTEM INTERFACE
    ${CMAKE_SOURCE_DIR}/src/compat/gloo_declarations)
endif()

# What the library's files with LibTorch share, and all of LibTorch for tests and
# benchmarks. With the first one such a file costs 3 s and its own code, 12 s and
# its own code without (docs/design/build.md).
# They belong to the top folder, whose targets Ninja begins first: all with LibTorch waits for them.
sherd_add_precompiled(torch_module DEPS sherd_torch HEADERS <torch/nn/module.h>)
if(SHERD_TOOLS)
  sherd_add_precompiled(torch DEPS sherd_torch HEADERS <torch/torch.h>)
endif()
function(sherd_use_torch_module_pch target)
  sherd_use_precompiled(${target} torch_module)
endfunction()
function(sherd_use_torch_pch target)
  sherd_use_precompiled(${target} torch)
endfunction()
