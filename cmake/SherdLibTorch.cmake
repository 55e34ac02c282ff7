# SPDX-License-Identifier: Apache-2.0
# LibTorch as the pip wheel or the LibTorch archive lays it out, for sherd's own
# build and, installed beside sherdConfig.cmake, for programs that use sherd.
# TorchConfig.cmake itself is not loaded: with a CUDA wheel it demands a CUDA
# toolkit that neither sherd nor its users need.
# sherd_find_libtorch()
#   From Torch_DIR, else below CMAKE_PREFIX_PATH. Sets SHERD_TORCH_ROOT and
#   SHERD_TORCH_VERSION, or SHERD_TORCH_PROBLEM, a sentence, when there is none.
# sherd_set_libtorch(TARGET)
#   Gives an interface target LibTorch's headers and libraries.

function(sherd_find_libtorch)
  set(SHERD_TORCH_PROBLEM "" PARENT_SCOPE)
  find_path(Torch_DIR TorchConfig.cmake
    # Prefixes are LibTorch's folder or torch.utils.cmake_prefix_path below it.
    HINTS ENV Torch_DIR PATH_SUFFIXES share/cmake/Torch Torch
    DOC "Folder of LibTorch's TorchConfig.cmake")
  if(NOT Torch_DIR)
    set(SHERD_TORCH_PROBLEM "sherd: expected LibTorch, found none; set Torch_DIR \
to the folder of TorchConfig.cmake or add LibTorch's folder to \
CMAKE_PREFIX_PATH (for a wheel: what python3 -c \
'import torch; print(torch.utils.cmake_prefix_path)' prints)" PARENT_SCOPE)
    return()
  endif()
  get_filename_component(root "${Torch_DIR}/../../.." ABSOLUTE)
  foreach(needed share/cmake/Torch/TorchConfigVersion.cmake
      include/ATen/ATen.h lib/libtorch_cpu.so lib/libc10.so)
    if(NOT EXISTS "${root}/${needed}")
      set(SHERD_TORCH_PROBLEM
        "sherd: expected ${needed} in ${root} (from Torch_DIR), found none"
        PARENT_SCOPE)
      return()
    endif()
  endforeach()
  include("${root}/share/cmake/Torch/TorchConfigVersion.cmake")
  set(SHERD_TORCH_ROOT "${root}" PARENT_SCOPE)
  set(SHERD_TORCH_VERSION "${PACKAGE_VERSION}" PARENT_SCOPE)
endfunction()

function(sherd_set_libtorch target)
  target_include_directories(${target} SYSTEM INTERFACE
    ${SHERD_TORCH_ROOT}/include ${SHERD_TORCH_ROOT}/include/torch/csrc/api/include)
  # libstdc++ comes first: libtorch.so of wheels for CUDA exports some of std::filesystem, of which
  # remove_all() crashes.
  target_link_libraries(${target} INTERFACE
    -Wl,--no-as-needed -lstdc++ ${SHERD_TORCH_ROOT}/lib/libtorch.so
    ${SHERD_TORCH_ROOT}/lib/libtorch_cpu.so ${SHERD_TORCH_ROOT}/lib/libc10.so
    -Wl,--as-needed)
  if(EXISTS "${SHERD_TORCH_ROOT}/lib/libtorch_cuda.so")
    target_link_libraries(${target} INTERFACE
      -Wl,--no-as-needed ${SHERD_TORCH_ROOT}/lib/libtorch_cuda.so
      ${SHERD_TORCH_ROOT}/lib/libc10_cuda.so -Wl,--as-needed)
  endif()
endfunction()
