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

# One precompiled header for what tests and tools share; the library's own files
# include the few headers they need.
function(sherd_use_torch_pch target)
  if(NOT TARGET sherd_torch_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/pch/torch_pch.cpp "// Anchors the precompiled header.\n")
    add_library(sherd_torch_pch STATIC ${CMAKE_BINARY_DIR}/pch/torch_pch.cpp)
    target_link_libraries(sherd_torch_pch PUBLIC sherd_torch)
    target_precompile_headers(sherd_torch_pch PRIVATE <torch/torch.h>)
    sherd_set_flags(sherd_torch_pch)
  endif()
  target_precompile_headers(${target} REUSE_FROM sherd_torch_pch)
  # CMake gives programs -fPIE, and GCC ignores a header precompiled otherwise.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${target} PRIVATE -fPIC)
endfunction()
