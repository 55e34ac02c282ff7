# SPDX-License-Identifier: Apache-2.0
# Target `sherd_shared`, for users sherd::sherd: all parts in one libsherd.so;
# target `sherd_c10d_shm_shared`, for users sherd::c10d_shm: the c10d backend in
# libsherd_c10d_shm.so; and what `cmake --install` copies. Only shared libraries are
# installed: the dispatch fallback must exist once per process, and a static one
# would come with every program and plugin that links it (docs/design/autograd.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Library TARGET, for users sherd::NAME, of the objects of these parts, with the
# public headers of INCLUDE.
function(sherd_add_shared_library target name include)
  add_library(${target} SHARED)
  foreach(part ${ARGN})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:sherd_${part}>)
  endforeach()
  add_library(sherd::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} LINKER_LANGUAGE CXX
    # No promise to fit other minor versions before 1.0.
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_link_options(${target} PRIVATE
    # A part that is missing in the list fails here, not in a user's program.
    -Wl,--no-undefined
    # LibTorch keeps pointers to what is in it: the fallback, the autograd engine,
    # backends.
    -Wl,-z,nodelete)
  if(SHERD_SANITIZE)  # Objects do not bring the options with which their parts are linked.
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${SHERD_SANITIZE}>)
  endif()
  target_compile_features(${target} INTERFACE cxx_std_20)
  target_include_directories(${target} INTERFACE
    $<BUILD_INTERFACE:${include}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${target} PUBLIC
    $<BUILD_INTERFACE:sherd_torch> $<INSTALL_INTERFACE:sherd::torch>)
endfunction()

sherd_add_shared_library(sherd_shared sherd ${CMAKE_SOURCE_DIR}/include ${SHERD_PARTS})
set_target_properties(sherd_shared PROPERTIES OUTPUT_NAME sherd)
# It has a copy of base and shm, whose code is the same and keeps no state, and so
# brings neither the dispatch fallback nor what libsherd.so needs.
sherd_add_shared_library(sherd_c10d_shm_shared c10d_shm ${CMAKE_SOURCE_DIR}/c10d_shm/include
  base shm c10d_shm_communicator c10d_shm)
set_target_properties(sherd_c10d_shm_shared PROPERTIES OUTPUT_NAME sherd_c10d_shm)
# Of src/net; nothing of them is in a public header.
target_link_libraries(sherd_shared PRIVATE OpenSSL::SSL OpenSSL::Crypto)
if(SHERD_TOKENIZER)
  target_link_libraries(sherd_shared PRIVATE
    ${SHERD_PCRE2_LIBRARY} ${SHERD_UTF8PROC_LIBRARY})
endif()
if(SHERD_TOOLS)  # The coordinator's log.
  target_link_libraries(sherd_shared PRIVATE SQLite::SQLite3)
endif()

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
install(TARGETS sherd_shared sherd_c10d_shm_shared EXPORT sherdTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/sherd ${CMAKE_SOURCE_DIR}/c10d_shm/include/sherd
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT sherdTargets NAMESPACE sherd:: DESTINATION ${package})
string(REGEX MATCH "^[0-9]+[.][0-9]+" SHERD_TORCH_MAJOR_MINOR "${SHERD_TORCH_VERSION}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/sherdConfig.cmake.in
  ${CMAKE_BINARY_DIR}/package/sherdConfig.cmake @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/sherdConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_BINARY_DIR}/package/sherdConfig.cmake
  ${CMAKE_BINARY_DIR}/package/sherdConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/SherdLibTorch.cmake
  DESTINATION ${package})

# The command. `sherd NAME` executes sherd-NAME, which lies beside it and has its own
# copy of the library and, its own process, its own fallback; so do the ranks of
# `sherd bench`. One of them is a script of PyTorch.
if(SHERD_TOOLS)
  set(with_torch sherd-train sherd-train-replica sherd-checkpoint sherd-bench-rank sherd-bench-collectives)
  if(SHERD_TOKENIZER)
    list(APPEND with_torch sherd-generate sherd-eval)
  endif()
  set_target_properties(${with_torch} PROPERTIES
    INSTALL_RPATH "${SHERD_TORCH_ROOT}/lib")
  install(TARGETS sherd sherd-bench sherd-coordinate sherd-simulate sherd-trace ${with_torch}
    DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(TARGET sherd-data)
    install(TARGETS sherd-data DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
  install(FILES ${CMAKE_SOURCE_DIR}/bench/peer_rank.py
    DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/sherd/bench)
endif()
