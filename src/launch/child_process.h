// SPDX-License-Identifier: Apache-2.0
//
// From a program's name to a running rank. A rank leads its own process group
// and dies with the thread that started it. Thread rule: one thread.
#pragma once

#include <sys/types.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/descriptor.h"
#include "launch/rank_exit.h"
#include "launch/signal_fd.h"

namespace sherd::launch {

// Why there is no process, and the exit status shells give for it: 127 not
// found, 126 found but not executable, 1 no resources.
struct StartFailure {
  int exit_status = 1;
  std::string message;
};

struct ProgramLookup {
  std::string path;  // Empty when there is a failure.
  StartFailure failure;
};

// The file that `name` means: itself when it has a slash, else the first
// executable of that name in the folders of `search_path`.
ProgramLookup find_program(const std::string& name, const std::string& search_path);

struct ProcessSpec {
  int rank = 0;
  std::string name;  // In messages: "rank 3".
  std::string path;
  std::vector<std::string> command;  // Argument 0 first.
  std::vector<std::string> variables;
  std::vector<int> cores;  // Empty: wherever the launcher may run.
  int stdin_fd = 0;
  int stdout_fd = 1;
  int stderr_fd = 2;
  int inherited_fd = -1;  // Stays open in the rank, under its number; -1: none.
};

// A started rank. Destruction leaves the process alone: end it first.
class ChildProcess {
 public:
  ChildProcess(int rank, pid_t pid, Descriptor exit_event)
      : rank_(rank), pid_(pid), exit_event_(std::move(exit_event)) {}

  // Readable when the rank has ended.
  int exit_fd() const { return exit_event_.get(); }
  pid_t pid() const { return pid_; }

  // Both do nothing once the rank is reaped.
  void signal_process(int signal) const;
  void signal_group(int signal) const;

  // Once the rank has ended: kills what is left of its group, releases its
  // process number, and tells how it ended. Nothing while it runs.
  std::optional<RankExit> try_reap();
  // The same after SIGKILL to the group; waits.
  void kill_and_reap();

 private:
  int rank_;
  pid_t pid_;  // -1 once reaped: the number may belong to another process.
  Descriptor exit_event_;
};

struct SpawnResult {
  std::optional<ChildProcess> process;
  StartFailure failure;  // When there is no process.
};

// Returns once the program runs, or cannot. The rank gets the signal settings
// that `signals` found.
SpawnResult spawn_process(const ProcessSpec& setup, const SignalFd& signals);

}  // namespace sherd::launch
