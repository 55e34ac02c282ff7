// SPDX-License-Identifier: Apache-2.0
//
// The body of main() of a tool whose output is its result. Thread rule: the main thread.
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <sherd/base/error.h>
#include <sherd/base/run_main.h>

namespace sherd::tools {

// Throws Error if something that was printed on stdout is lost, for instance because a disk is full.
inline void expect_printed() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    // What was lost before may have left no reason.
    throw Error(
        std::string("cannot write to standard output") +
            (errno == 0 ? "" : std::string(": ") + std::strerror(errno)),
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
