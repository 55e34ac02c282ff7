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
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

// How the ranks' stdout and stderr reach the user.
enum class RankOutput {
  kPrefixed,  // Passed on in whole lines, each after "[rank 3] ".
  kPlain,     // Passed on in whole lines as they are.
  kFiles,     // Written by the ranks to LOG_DIR/rank-3.log.
};

// Fault-tolerant training: LaunchOptions::ranks ranks make one replica, a world of
// its own, and replicas are started again when they die. Each rank finds
// SHERD_COORDINATOR (host:port), SHERD_REPLICA and SHERD_REPLICAS set besides the
// variables of its world.
struct ReplicaOptions {
  // Behaviour. How many replicas run.
  int replicas = 1;
  // Behaviour. Groups of ranks that start and wait for a replica to be lost,
  // whose place they take at once: they find SHERD_SPARE instead of
  // SHERD_REPLICA, the number of a descriptor from which they read their
  // replica's number, a line. Each costs the memory of a replica.
  int spares = 0;
  // Behaviour. How often one replica is started again: at once, then after 1 s,
  // 2 s and so on to a minute, until it has run for 5 minutes.
  int restarts_max = 100;
  // Behaviour. host:port of a coordinator that runs elsewhere; empty: one is
  // started, and started again whenever it ends.
  std::string coordinator;
  // Behaviour. The program of that one, and its first arguments.
  std::vector<std::string> coordinator_command;
  // Behaviour. What it is told: no step is committed by fewer replicas; what each
  // trains in a step; where its status page is served.
  int replicas_min = 1;
  // Its ranks divide it; 0: one for each.
  std::int64_t samples_per_replica = 0;
  std::int64_t global_batch = 0;  // Or all together; 0: as above.
  std::string status = "127.0.0.1:0";
  std::vector<std::string> coordinator_arguments;  // More, as they are.
  // Behaviour. Where its log is kept, and a run goes on that was begun there;
  // empty: in a temporary folder, which goes with the job.
  std::string run_folder;
  // Behaviour. The file of the secret that replicas and coordinator share, passed
  // on as SHERD_SECRET_FILE; empty: none.
  std::string secret_file;
  // Behaviour. Where drain_replica() and admit_replica() reach the launcher: the
  // path of a socket, of at most 107 bytes; empty: nowhere.
  std::string control;
};

struct LaunchOptions {
  // Behaviour. Number of ranks, of each replica when there are some; more than
  // there are cores is allowed.
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
  // drawn with CR work. Its stdout is then neither prefixed nor kept for the
  // report. Only sensible when that stdout is a terminal. Not for kFiles.
  bool rank0_owns_stdout = false;
  // Behaviour. How long ranks may go on after SIGINT, SIGTERM or SIGHUP was
  // passed on to them, for instance to save their state, before SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(30);
  // Behaviour. None: all ranks are one world and end together. With replicas
  // nobody reads stdin, lines begin with "[r1.0] " (rank 0 of replica 1), and
  // fake_hosts, port and rank0_owns_stdout stay unset.
  std::optional<ReplicaOptions> replicas{};
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
// With replicas: a rank that fails ends its replica alone, which is started again,
// also when others have returned; the status is 0 when the replica that ended last
// has returned, else that of the last failure, when none can be started again. SIGUSR1 asks all
// replicas to leave.
//
// Throws Error when an option makes no sense. REQUIRES: one thread, and the
// process has no other: signals are blocked and file descriptors inherited
// while this runs. Both are as before when it returns.
int run(const LaunchOptions& options);

// Ask the launcher that listens at `control` to let a replica leave after its
// step, and not to start it again (its rank 0 gets SIGUSR1), or to start one that
// has left or was given up. Returns what the launcher says; throws Error with its
// refusal, or when there is no launcher.
std::string drain_replica(const std::string& control, int replica);
std::string admit_replica(const std::string& control, int replica);

}  // namespace sherd::launch
