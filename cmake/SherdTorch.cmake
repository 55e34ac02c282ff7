# SPDX-License-Identifier: Apache-2.0
# Target `sherd_torch`: LibTorch's headers and libraries as the pip wheel or the
# LibTorch archive lays them out. TorchConfig.cmake itself is not loaded: with a
# CUDA wheel it demands a CUDA toolkit that neither sherd nor its users need.
if(NOT Torch_DIR)
  message(FATAL_ERROR "sherd: set Torch_DIR to the folder of TorchConfig.cmake "
                      "(scripts/setup finds it)")
endif()
get_filename_component(SHERD_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
foreach(needed include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${SHERD_TORCH_ROOT}/${needed}")
    message(FATAL_ERROR "sherd: expected ${needed} in ${SHERD_TORCH_ROOT}, found none")
  endif()
endforeach()

add_library(sherd_torch INTERFACE)
target_include_directories(sherd_torch SYSTEM INTERFACE
  ${SHERD_TORCH_ROOT}/include ${SHERD_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(sherd_torch INTERFACE
  -Wl,--no-as-needed ${SHERD_TORCH_ROOT}/lib/libtorch.so
  ${SHERD_TORCH_ROOT}/lib/libtorch_cpu.so ${SHERD_TORCH_ROOT}/lib/libc10.so
  -Wl,--as-needed)
# The wheel compiles its own c10d with Gloo; the macro makes its headers say so.
target_compile_definitions(sherd_torch INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
if(EXISTS "${SHERD_TORCH_ROOT}/lib/libtorch_cuda.so")
  target_link_libraries(sherd_torch INTERFACE
    -Wl,--no-as-needed ${SHERD_TORCH_ROOT}/lib/libtorch_cuda.so
    ${SHERD_TORCH_ROOT}/lib/libc10_cuda.so -Wl,--as-needed)
endif()
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
