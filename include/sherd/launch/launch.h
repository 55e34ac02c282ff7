// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a job on this host, passes their output on, and makes
// sure that they end together: when a rank fails, when the launcher gets a
// signal, or when it dies, all ranks end. A rank is any program; it learns its
// place from torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which World::from_environment
// reads. How ranks are stopped: the table in src/launch/stop_policy.h.
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
  // ---- behaviour

  // How many replicas run.
  int replicas = 1;
  // The number of spares: groups of ranks that start and wait until a replica
  // is lost, and then take its place at once. Instead of SHERD_REPLICA they
  // find SHERD_SPARE, the number of a descriptor from which they read their
  // replica's number as a line. Each spare takes the memory of a replica.
  int spares = 0;
  // How often one replica is started again within restart_window, before it is
  // given up; with a window of 0, within the job. It is started at once, then
  // after 1 s, 2 s and so on up to a minute; the delays begin anew once it has
  // run for 5 minutes.
  int restarts_max = 30;
  std::chrono::milliseconds restart_window = std::chrono::hours(1);
  // The address, host:port, of a coordinator that runs elsewhere. Empty: one is
  // started, and restarted whenever it ends.
  std::string coordinator;
  // The program of the coordinator that is started, and its first arguments.
  std::vector<std::string> coordinator_command;
  // The following are passed on to the coordinator. No step is committed by
  // fewer replicas than this.
  int replicas_min = 1;
  // The samples of a replica in a step, a multiple of its ranks; 0: one for
  // each rank.
  std::int64_t samples_per_replica = 0;
  std::int64_t global_batch = 0;  // Of all replicas together; 0: as above.
  std::string status = "127.0.0.1:0";
  std::vector<std::string> coordinator_arguments;  // Further ones.
  // The folder of the coordinator's log; a run that was begun there continues.
  // It is locked, so that one launcher at a time uses it.
  // Empty: a temporary folder, which is removed with the job.
  std::string run_folder;
  // The file of the secret that replicas and coordinator share, passed on as
  // SHERD_SECRET_FILE. Empty: with a coordinator that is started, the job makes a
  // secret of its own in the folder of the run, which only this user may read.
  std::string secret_file;
  // False: without secret_file there is no secret, and every process of this host
  // may connect.
  bool makes_secret = true;
  // How long replicas wait for others, passed on as SHERD_TIMEOUTS, see
  // SessionOptions::from_environment(). Empty: that variable stays as it is.
  std::string timeouts;
  // Where drain_replica() and admit_replica() reach the launcher: the path of a
  // socket, of at most 107 bytes; empty: nowhere.
  std::string control;
};

struct LaunchOptions {
  // ---- behaviour

  // Number of ranks, or of ranks of each replica if there are replicas. More
  // ranks than cores are allowed.
  int ranks = 1;
  // The program, sought in PATH unless it has a slash, and its arguments.
  std::vector<std::string> command;
  // "NAME=value" of every variable the ranks shall see besides those that the
  // launcher sets; PATH is taken from here. Normally the caller's own.
  std::vector<std::string> environment;
  // For testing several hosts on one: the number of pretended hosts, among
  // which the ranks are divided in order, as evenly as possible. Ranks of
  // different hosts share no memory (SHERD_FAKE_HOST). At most one host for
  // each rank; 0: only this host.
  int fake_hosts = 0;
  // Where rank 0 is to listen; 0 finds a free port.
  int port = 0;
  // Whole lines cost one copy in the launcher, files none.
  RankOutput output = RankOutput::kPrefixed;
  // Made when it does not exist; logs of an earlier run in it are replaced.
  // Only for kFiles.
  std::string log_dir;
  // Gives rank 0 the launcher's own stdout, so that progress bars drawn with CR
  // work. Its stdout is then neither prefixed nor kept for the report. Only
  // sensible when that stdout is a terminal. Not for kFiles.
  bool rank0_owns_stdout = false;
  // How long ranks may go on after SIGINT, SIGTERM or SIGHUP was passed on to
  // them, for instance to save their state, before SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(30);
  // None: all ranks are one world and end together. With replicas nobody reads
  // stdin, lines begin with "[r1.0] " (rank 0 of replica 1), and fake_hosts,
  // port and rank0_owns_stdout stay unset.
  std::optional<ReplicaOptions> replicas{};
  // ---- performance

  // Gives each rank cores of its own when there are enough.
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
// Processes that have left the group and lost their parent end then, too, unless
// they have cleared their environment, in which SHERD_START marks them.
// Rank 0 reads the launcher's stdin unless that is a terminal; the others read
// nothing. SIGUSR1 and SIGUSR2 are passed on to the ranks. Signals that were
// ignored at the call (nohup) stay ignored.
//
// With replicas: a rank that fails ends its replica alone, which is started again,
// also when others have returned; the status is 0 when the replica that ended last
// has returned, 75 when all were asked to leave before the run had ended, else that of the last
// failure, when none can be started again. SIGUSR1 asks all replicas to leave.
//
// Throws Error when an option makes no sense. REQUIRES: one thread, and the
// process has no other: signals are blocked and file descriptors inherited
// while this runs. Both are as before when it returns; the soft limit of open files
// is higher if the job needed that.
int run(const LaunchOptions& options);

// Ask the launcher that listens at `control` to let a replica leave after its
// step, and not to start it again (its rank 0 gets SIGUSR1), or to start one that
// has left or was given up. Returns what the launcher says; throws Error with its
// refusal, or when there is no launcher.
std::string drain_replica(const std::string& control, int replica);
std::string admit_replica(const std::string& control, int replica);

}  // namespace sherd::launch
