# SPDX-License-Identifier: Apache-2.0
# Target `sherd_shared`, for users sherd::sherd: all parts in one libsherd.so,
# and what `cmake --install` copies. Only a shared library is installed: the
# dispatch fallback must exist once per process, and a static one would come
# with every program and plugin that links it (docs/design/access.md).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(sherd_shared SHARED)
foreach(part ${SHERD_PARTS})
  target_sources(sherd_shared PRIVATE $<TARGET_OBJECTS:sherd_${part}>)
endforeach()
add_library(sherd::sherd ALIAS sherd_shared)
set_target_properties(sherd_shared PROPERTIES
  OUTPUT_NAME sherd EXPORT_NAME sherd LINKER_LANGUAGE CXX
  # No promise to fit other minor versions before 1.0.
  VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_link_options(sherd_shared PRIVATE
  # A part that is missing in the list fails here, not in a user's program.
  -Wl,--no-undefined
  # LibTorch keeps pointers to the fallback and to the autograd engine in it.
  -Wl,-z,nodelete)
# Of src/net; nothing of them is in a public header.
target_link_libraries(sherd_shared PRIVATE OpenSSL::SSL OpenSSL::Crypto)
if(SHERD_TOOLS)  # The coordinator's log.
  target_link_libraries(sherd_shared PRIVATE SQLite::SQLite3)
endif()
target_compile_features(sherd_shared INTERFACE cxx_std_20)
target_include_directories(sherd_shared INTERFACE
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(sherd_shared PUBLIC
  $<BUILD_INTERFACE:sherd_torch> $<INSTALL_INTERFACE:sherd::torch>)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sherd)
install(TARGETS sherd_shared EXPORT sherdTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/sherd
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

# The command. sherd-train has its own copy of the library and, its own process,
# its own fallback. `sherd bench` compares builds and stays in the build folder.
if(SHERD_TOOLS)
  set_target_properties(sherd-train PROPERTIES
    INSTALL_RPATH "${SHERD_TORCH_ROOT}/lib")
  set_target_properties(sherd-checkpoint PROPERTIES
    INSTALL_RPATH "${SHERD_TORCH_ROOT}/lib")
  install(TARGETS sherd sherd-train sherd-checkpoint DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
