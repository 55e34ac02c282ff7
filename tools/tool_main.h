// SPDX-License-Identifier: Apache-2.0
//
// The body of main() of a tool whose output is its result. Thread rule: the main thread.
#pragma once

#include <cstdio>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>

namespace sherd::tools {

// Throws Error if something that was printed on stdout is lost, for instance because a disk is full.
inline void expect_printed() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw Error(
        "expected an output that takes all that is printed, found one that "
        "does not",
        ErrorCode::kUnavailable);
  }
}

// run_main() with a command, which fails also if the output could not be written.
inline int tool_main(int argc, char** argv, int (*command)(int, char**)) {
  return run_main(argc, argv, [&] {
    const int status = command(argc, argv);
    expect_printed();
    return status;
  });
}

}  // namespace sherd::tools
