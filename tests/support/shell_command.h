// SPDX-License-Identifier: Apache-2.0
//
// Runs a command as a user would, through the shell. Thread rule: any thread.
#pragma once

#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <string>

namespace sherd::test {

struct Outcome {
  int exit_status = -1;
  std::string shown;  // stdout and stderr.
};

inline Outcome run_in_shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;  // NOLINT: fread fills it.
  for (std::size_t count = 1; count > 0;) {
    count = std::fread(buffer.data(), 1, buffer.size(), pipe);
    outcome.shown.append(buffer.data(), count);
  }
  outcome.exit_status = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

}  // namespace sherd::test
