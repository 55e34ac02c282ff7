// SPDX-License-Identifier: Apache-2.0
//
// Child processes, and telling processes of this host apart, whose ids may be recycled. This is
// the one place that forks and executes a program: the launcher's ranks and the benchmarks' jobs
// start here. A child leads a process group of its own, so that Ctrl-C reaches the parent alone,
// and is killed when the thread that started it ends. Thread rule: spawn_process() and a
// ChildProcess belong to one thread; the rest is for any thread.
#pragma once

#include <sys/types.h>
#include <array>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/descriptor.h"

namespace sherd {

// A descriptor that becomes readable when process `pid` ends. It is not open, and errno is set,
// when there is no such process (ESRCH) or the system has no descriptor left.
Descriptor open_pidfd(int pid);

// When process `pid` started, in clock ticks since the host's start; 0 when that is unknown.
std::uint64_t process_start_ticks(int pid);

// The settings that a process with a signalfd has changed and its children must not inherit.
struct SignalState {
  sigset_t mask = {};
  struct sigaction pipe = {};  // The action on SIGPIPE.

  // Safe between fork and exec.
  void restore() const;
};

struct ProcessSpec {
  std::string path;                      // The file to execute.
  std::vector<std::string> command;      // Argument 0 first.
  std::vector<std::string> environment;  // "NAME=value", all of it.
  std::vector<int> cores{};              // Empty: wherever the parent may run.
  std::array<int, 3> standard = {0, 1, 2};  // Become descriptors 0, 1 and 2.
  int inherited_fd =
      -1;  // Stays open in the child, under its number; -1: none.
};

struct ProcessExit {
  int code = 0;
  int signal = 0;  // Not 0: killed by it, and `code` means nothing.

  // By the convention of shells: 128 + signal for a process that was killed.
  int status() const { return signal != 0 ? 128 + signal : code; }
};

// Destruction leaves the process alone: end it first.
class ChildProcess {
 public:
  ChildProcess(pid_t pid, Descriptor exit_event)
      : pid_(pid), exit_event_(std::move(exit_event)) {}

  // Readable when the process has ended.
  int exit_fd() const { return exit_event_.get(); }
  // -1 once reaped: the number may belong to another process.
  pid_t pid() const { return pid_; }

  // Both do nothing once the process is reaped.
  void signal_process(int signal) const;
  void signal_group(int signal) const;

  // Kills what is left of the group of a process that has ended, releases its id, and tells how
  // it ended. Nothing while it runs, and once it is reaped.
  std::optional<ProcessExit> try_reap();
  // The same, but waits for the end. REQUIRES: not reaped.
  ProcessExit wait();
  // Kills the group first; does nothing once the process is reaped.
  void kill_and_reap();

 private:
  std::optional<ProcessExit> reap(int flags);

  pid_t pid_;
  Descriptor exit_event_;
};

struct SpawnResult {
  std::optional<ChildProcess> process;
  int error = 0;  // errno when there is no process.
  bool exec_failed =
      false;  // The error is execve()'s, else one of a lack of resources.
};

// Returns once the program runs, or cannot. The child gets the settings of `signals`.
SpawnResult spawn_process(const ProcessSpec& spec, const SignalState& signals);

}  // namespace sherd
