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

# Two precompiled headers: what the library's files with LibTorch share, and all
# of LibTorch for tests and benchmarks. With the first one a file of the library
# costs 3 s less its own code instead of 12 s (docs/design/build.md).
function(sherd_use_precompiled target name)
  set(pch sherd_${name}_pch)
  if(NOT TARGET ${pch})
    file(WRITE ${CMAKE_BINARY_DIR}/pch/${pch}.cpp "// Anchors the precompiled header.\n")
    add_library(${pch} STATIC ${CMAKE_BINARY_DIR}/pch/${pch}.cpp)
    target_link_libraries(${pch} PUBLIC sherd_torch)
    target_precompile_headers(${pch} PRIVATE ${ARGN})
    sherd_set_flags(${pch})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

function(sherd_use_torch_module_pch target)
  sherd_use_precompiled(${target} torch_module <torch/nn/module.h>)
endfunction()

function(sherd_use_torch_pch target)
  sherd_use_precompiled(${target} torch <torch/torch.h>)
  # CMake gives programs -fPIE, and GCC ignores a header precompiled otherwise.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()
