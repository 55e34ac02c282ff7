# SPDX-License-Identifier: Apache-2.0
# sherd_add_module(NAME SOURCES ... [TESTS ...] [TEST_DEPS ...] DEPS ...
#     [TORCH [TEST_PARTS n]] [CONTROL])
#   Library sherd_NAME from explicit sources, and one test binary NAME_test from
#   all TESTS. A *_test.cpp in the folder that is listed nowhere fails configure.
#   CONTROL: its code decides and talks, and never touches the bytes of tensors.
# sherd_add_benchmark(NAME SOURCES ... DEPS ... [TORCH])
#   A google/benchmark binary NAME. Built with everything else, so that it cannot
#   rot, but run by hand: its figures mean nothing on a busy machine. Target
#   `benchmarks` builds them all.
# sherd_add_test(NAME SOURCES ... DEPS ... [TORCH [PARTS n]] [LABELS ...] [TIMEOUT s]
#     [WITHOUT ...])
#   A test binary; each of its GoogleTest suites is one ctest entry NAME.Suite.
#   Entries that expect peers to notice within a time, seconds mostly, take turns,
#   see sherd_take_turns(): label `failure`, and suites with such names.
#   Loading LibTorch takes longer than most suites, so with TORCH all other suites
#   share n entries NAME.1ofn, NAME.2ofn, ...; suites of files that skip stay
#   apart, because an entry in which one test skips counts as skipped. WITHOUT:
#   patterns of tests that other entries of the program run.
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
    if(SHERD_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # It does not know fences and warns of each, those in Asio included.
      target_compile_options(${target} PRIVATE -Wno-tsan)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${SHERD_SANITIZE})
  endif()
endfunction()

# For code in which no user would notice more than -O1, which compiles in two thirds to
# nine tenths of the time of -O3.
function(sherd_optimise_less target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# sherd_add_precompiled(NAME HEADERS ... [DEPS ...])
#   One precompiled header for all targets that use it; nothing if there is one of that name.
function(sherd_add_precompiled name)
  cmake_parse_arguments(ARG "" "" "HEADERS;DEPS" ${ARGN})
  set(pch sherd_${name}_pch)
  if(TARGET ${pch})
    return()
  endif()
  file(WRITE ${CMAKE_BINARY_DIR}/pch/${pch}.cpp "// Anchors the precompiled header.\n")
  add_library(${pch} STATIC ${CMAKE_BINARY_DIR}/pch/${pch}.cpp)
  target_link_libraries(${pch} PUBLIC ${ARG_DEPS})
  target_precompile_headers(${pch} PRIVATE ${ARG_HEADERS})
  sherd_set_flags(${pch})
endfunction()

# GCC takes a precompiled header only with equal flags, thus -fPIC where CMake would give
# programs -fPIE.
function(sherd_use_precompiled target name)
  target_precompile_headers(${target} REUSE_FROM sherd_${name}_pch)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
endfunction()

# A file that sees LibTorch pays 11 s for templates its headers leave pending, so
# several share them. GCC then takes a file's own types for those of a header.
# Without SHERD_UNITY each file is compiled alone, as the precompiled header makes cheap
# for one changed file and dear for all.
function(sherd_compile_together target batch)
  if(NOT SHERD_UNITY)
    return()
  endif()
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
  cmake_parse_arguments(
    ARG "TORCH" "TIMEOUT;PARTS" "SOURCES;DEPS;LABELS;WITHOUT" ${ARGN})
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
    sherd_optimise_less(${name})
    # Fewer together where files of more than a batch use the same names.
    set(batch 8)
    if(name MATCHES "^(fsdp|numerics|multiproc|failure|ddp_ranks)_test$")
      set(batch 4)
    endif()
    sherd_compile_together(${name} ${batch})
  else()
    sherd_add_precompiled(test DEPS GTest::gmock HEADERS <gmock/gmock.h>)
    sherd_use_precompiled(${name} test)
    sherd_optimise_less(${name})
    sherd_compile_together(${name} 8)
  endif()
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # Six times what the longest entry took on a busy machine of two cores.
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 900)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set(suites)
  set(skipping)
  foreach(source ${ARG_SOURCES})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
      ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    file(STRINGS ${source} skips REGEX "GTEST_SKIP")
    foreach(line ${lines})
      if(NOT line MATCHES "^[A-Z_]+\\( *([A-Za-z0-9_]+)")
        message(FATAL_ERROR
          "${source}: expected the suite of a test on its first line, found '${line}'")
      endif()
      set(suite ${CMAKE_MATCH_1})
      list(APPEND suites ${suite})
      if(skips)
        list(APPEND skipping ${suite})
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES suites)
  set(others)
  foreach(suite ${suites})
    set(filter "${suite}.*:*/${suite}.*:${suite}/*")
    set(waits OFF)
    if("failure" IN_LIST ARG_LABELS OR suite MATCHES "Failure|Kill|Stop|Watch")
      set(waits ON)
    endif()
    if(ARG_TORCH AND NOT waits AND NOT suite IN_LIST skipping)
      list(APPEND others ${filter})
    elseif(waits)
      sherd_add_test_entry(${name}.${suite} ${name} ${filter})
      sherd_take_turns(${name}.${suite})
    else()
      sherd_add_test_entry(${name}.${suite} ${name} ${filter})
    endif()
  endforeach()
  if(NOT others)
    return()
  endif()
  if(NOT ARG_PARTS)
    set(ARG_PARTS 1)
  endif()
  list(JOIN others ":" filter)
  if(ARG_WITHOUT)
    list(JOIN ARG_WITHOUT ":" without)
    string(APPEND filter "-${without}")
  endif()
  foreach(part RANGE 1 ${ARG_PARTS})
    set(entry ${name}.${part}of${ARG_PARTS})
    math(EXPR index "${part} - 1")
    sherd_add_test_entry(${entry} ${name} ${filter} ${SHERD_NICE})
    # Long ones start first, so that they do not end last.
    set_tests_properties(${entry} PROPERTIES COST ${ARG_PARTS} ENVIRONMENT
      "GTEST_TOTAL_SHARDS=${ARG_PARTS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# What entries that compute for long begin with: those that must notice something in time, and run
# beside them, come first wherever both want a core.
set(SHERD_NICE nice -n 5)

# These entries wait for most of their time. One for each core runs at a time, and
# from the start, beside entries that compute: after those, cores would be idle.
function(sherd_take_turns)
  cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
  foreach(entry ${ARGN})
    get_property(number GLOBAL PROPERTY sherd_waiting_entries)
    math(EXPR turn "(0${number} + 1) % ${cores}")
    set_property(GLOBAL PROPERTY sherd_waiting_entries ${turn})
    set_tests_properties(${entry} PROPERTIES RESOURCE_LOCK waits_${turn} COST 200)
  endforeach()
endfunction()

# Programs with sanitizers are several times slower.
function(sherd_set_timeout entry seconds)
  # Programs of one thread that simulate take 15 times as long under ThreadSanitizer.
  if(SHERD_SANITIZE MATCHES "thread")
    math(EXPR seconds "15 * ${seconds}")
  elseif(SHERD_SANITIZE)
    math(EXPR seconds "5 * ${seconds}")
  endif()
  set_tests_properties(${entry} PROPERTIES TIMEOUT ${seconds})
endfunction()

# One ctest entry, after `ARGN`; LABELS and TIMEOUT are those of the caller.
function(sherd_add_test_entry entry name filter)
  add_test(NAME ${entry} COMMAND ${ARGN} $<TARGET_FILE:${name}>
    "--gtest_filter=${filter}" --gtest_color=no)
  sherd_set_timeout(${entry} ${ARG_TIMEOUT})
  set_tests_properties(${entry} PROPERTIES
    LABELS "${ARG_LABELS}"
    SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]"
    FAIL_REGULAR_EXPRESSION "\\[==========\\] 0 tests;Running 0 tests")
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
  sherd_set_timeout(${name} 120)
  set_tests_properties(${name} PROPERTIES LABELS unit)
endfunction()

function(sherd_add_module name)
  cmake_parse_arguments(ARG "TORCH;CONTROL" "TEST_PARTS" "SOURCES;DEPS;TESTS;TEST_DEPS" ${ARGN})
  set(target sherd_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    sherd_set_flags(${target})
    if(ARG_CONTROL)
      sherd_optimise_less(${target})
    endif()
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
      sherd_compile_together(${target} 14)
    endif()
  elseif(ARG_SOURCES)
    sherd_compile_together(${target} 8)
  endif()
  sherd_check_all_tests_built(${ARG_TESTS})
  if(ARG_TESTS AND SHERD_TESTS)
    set(torch)
    if(ARG_TORCH)
      set(torch TORCH PARTS ${ARG_TEST_PARTS})
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
