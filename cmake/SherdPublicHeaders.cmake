# SPDX-License-Identifier: Apache-2.0
# Compiles each public header alone: object library sherd_public_headers, part
# of `all`. A header that only works after another one fails the build here. Where
# src/PART/NAME.cpp exists it does this already: scripts/tidy.py sees to it that
# it includes its header first. The files made hold one include line and are
# compiled without optimisation: a header with LibTorch costs 3 to 12 s to read.
function(sherd_check_public_headers)
  file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR}/include CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/include/sherd/*.h)
  if(NOT SHERD_TORCH)
    list(FILTER headers INCLUDE REGEX "^sherd/(base|plan|launch)/")
  endif()
  set(sources)
  foreach(header ${headers})
    string(REGEX REPLACE "\\.h$" ".cpp" source ${header})
    string(REGEX REPLACE "^sherd/" "" inner ${source})
    if(EXISTS ${CMAKE_SOURCE_DIR}/src/${inner})
      continue()
    endif()
    set(source ${CMAKE_BINARY_DIR}/public_headers/${source})
    # Only when it changes, so that a new configure compiles nothing again.
    file(CONFIGURE OUTPUT ${source} CONTENT "#include <@header@>\n" @ONLY)
    list(APPEND sources ${source})
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(sherd_public_headers OBJECT ${sources})
  sherd_set_flags(sherd_public_headers)
  target_compile_options(sherd_public_headers PRIVATE -O0 -g0)
  target_include_directories(sherd_public_headers PRIVATE ${CMAKE_SOURCE_DIR}/include)
  if(SHERD_TORCH)
    target_link_libraries(sherd_public_headers PRIVATE sherd_torch)
  endif()
endfunction()
