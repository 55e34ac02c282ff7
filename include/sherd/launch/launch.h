// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a job on this host, passes their output on, and makes
// sure that they end together: the first rank that fails takes the others with
// it, and so does a signal to the launcher, or its death. A rank is any
// program; it learns its place from torchrun's variables (RANK, WORLD_SIZE,
// LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which
// World::from_environment reads. How ranks are stopped: the table in
// src/launch/stop_policy.h.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace sherd::launch {

// How the ranks' stdout and stderr reach the user.
enum class RankOutput {
  kPrefixed,  // Passed on in whole lines, each after "[rank 3] ".
  kPlain,     // Passed on in whole lines as they are.
  kFiles,     // Written by the ranks to <log_dir>/rank-3.log.
};

struct LaunchOptions {
  // Behaviour. Number of ranks; more than there are cores is allowed.
  int ranks = 1;
  // Behaviour. The program, sought in PATH unless it has a slash, and its
  // arguments.
  std::vector<std::string> command;
  // Behaviour. "NAME=value" of every variable the ranks shall see besides those
  // that the launcher sets; PATH is taken from here. Normally the caller's own.
  std::vector<std::string> environment;
  // Behaviour. For tests of several hosts on one: as many hosts, among which
  // ranks are divided in order, as evenly as may be. Ranks of different ones
  // share no memory (SHERD_FAKE_HOST). At most one a rank; 0: this host.
  int fake_hosts = 0;
  // Behaviour. Where rank 0 is to listen; 0 finds a free port.
  int port = 0;
  // Behaviour. Whole lines cost one copy in the launcher, files none.
  RankOutput output = RankOutput::kPrefixed;
  // Behaviour. Made when it does not exist; logs of an earlier run in it are
  // replaced. Only for kFiles.
  std::string log_dir;
  // Behaviour. Gives rank 0 the launcher's own stdout, so that progress bars
  // drawn with \r work. Its stdout is then neither prefixed nor kept for the
  // report. Only sensible when that stdout is a terminal. Not for kFiles.
  bool rank0_owns_stdout = false;
  // Behaviour. How long ranks may go on after SIGINT, SIGTERM or SIGHUP was
  // passed on to them, for instance to save their state, before SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(30);
  // Performance. Gives each rank cores of its own when there are enough.
  // Never changes a result.
  bool bind_cores = true;
};

// Runs the job to its end and returns the exit status for the calling command:
// 0 when every rank returned 0; the exit code of the rank that failed first, or
// 128 + the signal that killed it; 128 + the signal that stopped the launcher;
// 127 or 126 when the program is not found or cannot be executed; 1 when the
// ranks could not be started for another reason (port in use, no more
// processes). What happened is said on stderr. No rank is left running.
//
// Each rank leads a process group of its own, which ends when the rank does.
// Rank 0 reads the launcher's stdin unless that is a terminal; the others read
// nothing. SIGUSR1 and SIGUSR2 are passed on to the ranks. Signals that were
// ignored at the call (nohup) stay ignored.
//
// Throws Error when an option makes no sense. REQUIRES: one thread, and the
// process has no other: signals are blocked and file descriptors inherited
// while this runs. Both are as before when it returns.
int run(const LaunchOptions& options);

}  // namespace sherd::launch
