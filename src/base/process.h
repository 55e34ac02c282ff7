// SPDX-License-Identifier: Apache-2.0
//
// Child processes, and process identities that survive the recycling of ids. This is the only place
// that forks and executes a program: the launcher's ranks and the benchmarks' jobs start here. A
// child leads a process group of its own, so Ctrl-C reaches only the parent, and it is killed when
// the thread that started it ends. Thread rule: spawn_process() and a ChildProcess belong to one
// thread; the rest is for any thread.
#pragma once

#include <sys/types.h>
#include <array>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "base/clock.h"
#include "base/descriptor.h"

namespace sherd {

// A descriptor that becomes readable when process `pid` ends. It is not open, and errno is set, if
// there is no such process (ESRCH) or the system has no descriptor left.
Descriptor open_pidfd(int pid);

// The field of /proc/PID/stat with this number in proc(5), from 3 on; 0 if that is unknown.
std::uint64_t process_stat(int pid, int field);

// When process `pid` started, in clock ticks since the host started; 0 if that is unknown.
inline std::uint64_t process_start_ticks(int pid) {
  return process_stat(pid, 22);
}

// The settings that a process with a signalfd has changed, and that its children must not inherit.
struct SignalState {
  sigset_t mask = {};
  struct sigaction pipe = {};   // The action on SIGPIPE.
  struct sigaction child = {};  // The action on SIGCHLD.

  // The settings of the calling thread.
  static SignalState current();
  // Safe between fork and exec.
  void restore() const;
};

struct ProcessSpec {
  std::string path;                      // The file to execute.
  std::vector<std::string> command;      // Argument 0 first.
  std::vector<std::string> environment;  // "NAME=value", all of it.
  std::vector<int> cores{};              // Empty: wherever the parent may run.
  std::array<int, 3> standard = {0, 1, 2};  // Become descriptors 0, 1 and 2.
  // Stays open in the child, under its number; -1: none.
  int inherited_fd = -1;
};

struct ProcessExit {
  int code = 0;
  // If not 0, the signal that killed it; `code` is then unused.
  int signal = 0;

  // The exit status by the convention of shells: 128 + signal for a process that was killed.
  int status() const { return signal != 0 ? 128 + signal : code; }
};

// The destructor does not end the process: end it first.
class ChildProcess {
 public:
  ChildProcess(pid_t pid, Descriptor exit_event)
      : pid_(pid), exit_event_(std::move(exit_event)) {}

  // Readable when the process has ended.
  int exit_fd() const { return exit_event_.get(); }
  // -1 once reaped: the number may belong to another process.
  pid_t pid() const { return pid_; }

  // The following two do nothing once the process is reaped.
  void signal_process(int signal) const;
  void signal_group(int signal) const;

  // If the process has ended, kills what is left of its group, releases its id, and returns how it
  // ended. Returns nothing while it runs, or if it is already reaped.
  std::optional<ProcessExit> try_reap();
  // The same, but waits for the end. REQUIRES: not yet reaped.
  ProcessExit wait();
  // Kills the group first. Returns false if the process has not ended within `timeout`, because it
  // hangs in the kernel: it is forgotten then. Does nothing once the process is reaped.
  bool kill_and_reap(Duration timeout = std::chrono::seconds(10));

 private:
  std::optional<ProcessExit> reap(int flags);

  pid_t pid_;
  Descriptor exit_event_;
};

struct SpawnResult {
  std::optional<ChildProcess> process;
  int error = 0;  // errno if there is no process.
  // The error is execve()'s, else one of a lack of resources.
  bool exec_failed = false;
};

// Returns when the program runs or could not be started. The child gets the settings in `signals`.
SpawnResult spawn_process(const ProcessSpec& spec, const SignalState& signals);

}  // namespace sherd
