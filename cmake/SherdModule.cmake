# SPDX-License-Identifier: Apache-2.0
# sherd_add_module(NAME SOURCES ... [TESTS ...] [TEST_DEPS ...] DEPS ... [TORCH])
#   Library sherd_NAME from explicit sources, and one test binary NAME_test from
#   all TESTS. A *_test.cpp in the folder that is listed nowhere fails configure.
# sherd_add_benchmark(NAME SOURCES ... DEPS ... [TORCH])
#   A google/benchmark binary NAME. Built with everything else, so that it cannot
#   rot, but run by hand: its figures mean nothing on a busy machine. Target
#   `benchmarks` builds them all.
# sherd_add_test(NAME SOURCES ... DEPS ... [TORCH] [LABELS ...] [TIMEOUT s])
#   A test binary; each of its GoogleTest suites is one ctest entry NAME.Suite.
#   Entries that expect peers to notice within a time have the machine to
#   themselves: label `failure`, and suites with such names.
# sherd_add_fuzzer(NAME SOURCES ... DEPS ...)
#   A fuzz target: with SHERD_FUZZ a libFuzzer program, else one with a plain
#   main. Either way a ctest entry of a few random inputs.

function(sherd_set_flags target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wshadow
    $<$<CXX_COMPILER_ID:GNU>:-Wno-psabi>
    $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>
    $<$<BOOL:${SHERD_WERROR}>:-Werror>)
  if(SHERD_SANITIZE)
    target_compile_options(${target} PRIVATE
      -fsanitize=${SHERD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE})
  endif()
endfunction()

# A file that sees LibTorch pays 11 s for templates its headers leave pending, so
# several share them. GCC then takes a file's own types for those of a header.
function(sherd_compile_together target batch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  target_compile_options(${target} PRIVATE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()

function(sherd_check_all_tests_built)
  file(GLOB found RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *_test.cpp)
  foreach(file ${found})
    if(NOT file IN_LIST ARGN)
      message(FATAL_ERROR "sherd: ${CMAKE_CURRENT_SOURCE_DIR}/${file} is in no test target")
    endif()
  endforeach()
endfunction()

function(sherd_add_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT SHERD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  sherd_set_flags(${name})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE sherd_torch)
    sherd_use_torch_pch(${name})
    # Nothing of a test's own code needs more than -O1.
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
    # Fewer together where files of more than a batch use the same names.
    set(batch 8)
    if(name MATCHES "^(fsdp|numerics|multiproc|failure|ddp_ranks)_test$")
      set(batch 4)
    endif()
    sherd_compile_together(${name} ${batch})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set(suites)
  foreach(source ${ARG_SOURCES})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    foreach(line ${lines})
      string(REGEX REPLACE "^[A-Z_]+\\( *([A-Za-z0-9_]+).*" "\\1" suite "${line}")
      list(APPEND suites ${suite})
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  foreach(suite ${suites})
    set(serial OFF)
    if("failure" IN_LIST ARG_LABELS OR suite MATCHES "Failure|Kill|Stop|Watch")
      set(serial ON)
    endif()
    add_test(NAME ${name}.${suite}
      COMMAND ${name} "--gtest_filter=${suite}.*:*/${suite}.*:${suite}/*" --gtest_color=no)
    set_tests_properties(${name}.${suite} PROPERTIES
      TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
      SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]"
      RUN_SERIAL ${serial}
      FAIL_REGULAR_EXPRESSION "\\[==========\\] 0 tests;Running 0 tests")
  endforeach()
endfunction()

function(sherd_add_fuzzer name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(NOT SHERD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  sherd_set_flags(${name})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS})
  if(SHERD_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  else()
    target_link_libraries(${name} PRIVATE sherd_fuzz_main)
  endif()
  add_test(NAME ${name} COMMAND ${name} -runs=1000 -seed=1)
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS unit)
endfunction()

function(sherd_add_module name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  set(target sherd_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    sherd_set_flags(${target})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
  target_link_libraries(${target} ${scope} ${ARG_DEPS})
  if(ARG_TORCH)
    target_link_libraries(${target} ${scope} sherd_torch)
    if(ARG_SOURCES)
      sherd_use_torch_module_pch(${target})
      sherd_compile_together(${target} 4)
    endif()
  endif()
  sherd_check_all_tests_built(${ARG_TESTS})
  if(ARG_TESTS AND SHERD_TESTS)
    set(torch)
    if(ARG_TORCH)
      set(torch TORCH)
    endif()
    sherd_add_test(${name}_test SOURCES ${ARG_TESTS} DEPS ${target} ${ARG_TEST_DEPS} ${torch})
  endif()
endfunction()

function(sherd_add_benchmark name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;DEPS" ${ARGN})
  if(NOT SHERD_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES})
  sherd_set_flags(${name})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} benchmark::benchmark)
  if(ARG_TORCH)
    target_link_libraries(${name} PRIVATE sherd_torch)
    sherd_use_torch_pch(${name})
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
  if(NOT TARGET benchmarks)
    add_custom_target(benchmarks)
  endif()
  add_dependencies(benchmarks ${name})
endfunction()
