// SPDX-License-Identifier: Apache-2.0
//
// Starting a program that dies with this one. Thread rule: one thread, the only
// one of the process.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <array>
#include <string>
#include <vector>

namespace sherd::bench {

struct BenchProcessSpec {
  std::vector<std::string> command;         // Its first word is a path.
  std::vector<std::string> environment;     // "NAME=value", all of it.
  std::array<int, 3> standard{-1, -1, -1};  // Become descriptors 0, 1 and 2.
  sigset_t mask{};  // Of signals that are blocked in it.
};

// Starts it in a process group of its own: Ctrl-C reaches this one alone. Returns
// -1 with errno when the system has no process left; a program that cannot be
// executed exits with 127.
pid_t start_child(const BenchProcessSpec& setup);

// Waits for its end; the exit status, 128 + the signal that ended it.
int wait_for_end(pid_t process);

}  // namespace sherd::bench
