// SPDX-License-Identifier: Apache-2.0
//
// main() of a rank of a benchmark: what its command throws becomes one line and
// exit status 1. Thread rule: one thread.
#pragma once

#include <cstdio>
#include <exception>
#include <c10/util/Exception.h>

namespace sherd::bench {

inline int rank_main(
    const char* program, int (*command)(int, char**), int argc, char** argv) {
  try {
    return command(argc, argv);
  } catch (const c10::Error& error) {  // what() has a stack trace, too.
    std::fprintf(stderr, "%s: %s\n", program, error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
  }
  return 1;
}

}  // namespace sherd::bench
