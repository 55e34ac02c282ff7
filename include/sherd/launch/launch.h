// SPDX-License-Identifier: Apache-2.0
//
// Starts the ranks of a job on this host, forwards their output, and makes sure that they end
// together: when a rank fails, when the launcher gets a signal, or when it dies, all ranks end. A
// rank is any program; it learns its place from torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK,
// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), which World::from_environment() reads. How ranks are
// stopped: the table in src/launch/stop_policy.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sherd::launch {

// How the ranks' stdout and stderr reach the user.
enum class RankOutput {
  kPrefixed,  // Forwarded in whole lines, each after "[rank 3] ".
  kPlain,     // Forwarded in whole lines as they are.
  kFiles,     // Written by the ranks to LOG_DIR/rank-3.log.
};

// Fault-tolerant training: LaunchOptions::ranks ranks make one replica, a world of its own, and
// replicas are started again when they die. Each rank gets SHERD_COORDINATOR (host:port),
// SHERD_REPLICA and SHERD_REPLICAS in its environment besides the variables of its world.
struct ReplicaOptions {
  // ---- behaviour

  // How many replicas run.
  int replicas = 1;
  // The number of spares: groups of ranks that start and wait until a replica is lost, and then
  // take its place at once. Instead of SHERD_REPLICA they get SHERD_SPARE_GROUP, their own number,
  // and SHERD_SPARE, the number of a descriptor from which they read their replica's number as a
  // line. Each spare takes the memory of a replica.
  int spares = 0;
  // How often one replica is started again within restart_window before it is given up; with a
  // window of 0, within the whole job. It is started at once, then after 1 s, 2 s and so on up to a
  // minute; the delays start from the beginning once it has run for 5 minutes.
  int restarts_max = 30;
  std::chrono::milliseconds restart_window = std::chrono::hours(1);
  // The address, host:port, of a coordinator that runs elsewhere. Empty: the job starts one, and
  // restarts it whenever it ends.
  std::string coordinator;
  // The program of a coordinator that the job starts, and its first arguments.
  std::vector<std::string> coordinator_command;
  // The following are passed on to the coordinator. No step is committed by fewer replicas than
  // this.
  int replicas_min = 1;
  // The number of samples of a replica in a step, a multiple of its ranks. 0: one for each rank.
  std::int64_t samples_per_replica = 0;
  // The number of samples of all replicas together. 0: use samples_per_replica.
  std::int64_t global_batch = 0;
  std::string status = "127.0.0.1:0";
  std::vector<std::string> coordinator_arguments;  // Further arguments.
  // The folder of the coordinator's log. A run that was begun there continues. The folder is
  // locked, so only one launcher at a time uses it. Empty: a temporary folder, which is removed
  // with the job.
  std::string run_folder;
  // The file of the secret that replicas and coordinator share, passed on as SHERD_SECRET_FILE.
  // Empty: if the job starts the coordinator, it makes a secret of its own in the folder of the
  // run, which only this user may read.
  std::string secret_file;
  // If false, there is no secret without secret_file, and every process of this host may connect.
  bool makes_secret = true;
  // How long replicas wait for others, passed on as SHERD_TIMEOUTS; see
  // SessionOptions::from_environment(). Empty: that variable stays as it is.
  std::string timeouts;
  // The path of a socket, at most 107 bytes, at which drain_replica() and admit_replica() reach the
  // launcher. Empty: none.
  std::string control;
};

struct LaunchOptions {
  // ---- behaviour

  // The number of ranks or, with replicas, of the ranks of each replica. There may be more ranks
  // than cores.
  int ranks = 1;
  // The program, searched for in PATH unless it contains a slash, and its arguments.
  std::vector<std::string> command;
  // "NAME=value" of every variable in the ranks' environment besides those that the launcher sets;
  // PATH is taken from here. Normally the caller's own environment.
  std::vector<std::string> environment;
  // For testing several hosts on one: the number of simulated hosts, among which the ranks are
  // divided in order, as evenly as possible. Ranks of different hosts share no memory
  // (SHERD_FAKE_HOST). At most one host for each rank. 0: only this host.
  int fake_hosts = 0;
  // The port at which rank 0 listens. 0: a free port.
  int port = 0;
  // Forwarded lines cost one copy in the launcher, files cost none.
  RankOutput output = RankOutput::kPrefixed;
  // Made if it does not exist; logs of an earlier run in it are replaced. Only for kFiles.
  std::string log_dir;
  // Gives rank 0 the launcher's own stdout, so that progress bars drawn with CR work. Rank 0's
  // stdout is then neither prefixed nor kept for the report. Only sensible if that stdout is a
  // terminal. Not for kFiles.
  bool rank0_owns_stdout = false;
  // How long ranks may continue after SIGINT, SIGTERM or SIGHUP was passed on to them, for instance
  // to save their state, before they get SIGKILL.
  std::chrono::milliseconds stop_grace = std::chrono::seconds(30);
  // A rank that fails because it lost another rank may end before that rank does. This is how long
  // the other rank may then take to end, and to report why, before all ranks get SIGTERM. Not with
  // replicas.
  std::chrono::milliseconds cause_grace = std::chrono::milliseconds(500);
  // With SHERD_FLIGHT_DIR in the environment of the ranks: how long the others may take after a
  // failure to notice it and to write what they waited for, before all get SIGTERM. The job ends
  // sooner if they do. Not with replicas, which are restarted at once because the other replicas
  // wait for them.
  std::chrono::milliseconds record_grace = std::chrono::seconds(5);
  // Unset: all ranks are one world and end together. With replicas no rank reads stdin, lines begin
  // with "[r1.0] " (rank 0 of replica 1), and fake_hosts, port and rank0_owns_stdout must be unset.
  std::optional<ReplicaOptions> replicas{};
  // ---- performance

  // Gives each rank cores of its own if there are enough. Never changes a result.
  bool bind_cores = true;
};

// Runs the job to its end and returns the exit status for the calling command: 0 if every rank
// returned 0; the exit code of the rank that failed first, or 128 + the signal that killed it; 128
// + the signal that stopped the launcher; 127 or 126 if the program is not found or cannot be
// executed; 1 if the ranks could not be started for another reason (port in use, no more
// processes), or have succeeded but output of theirs was lost, for instance on a full disk. Reports
// what happened on stderr. No rank is left running.
//
// Each rank leads a process group of its own, which ends when the rank does. Processes that have
// left the group and lost their parent are ended then, too, unless they have cleared their
// environment, in which SHERD_START marks them. Rank 0 reads the launcher's stdin unless that is a
// terminal; the others read nothing. SIGUSR1 and SIGUSR2 are passed on to the ranks; SIGQUIT kills
// them. Signals that were ignored at the call (nohup) stay ignored.
//
// With replicas, a rank that fails ends only its replica, which is started again even if others
// have returned. The status is 0 if the replica that ended last has returned, 75 if all were asked
// to leave before the run had ended, and otherwise, when no replica can be started again, that of
// the last failure. SIGUSR1 asks all replicas to leave.
//
// Throws Error if an option makes no sense. REQUIRES: the process has no other thread. While this
// runs, signals are blocked and file descriptors inherited; when it returns, both are as before.
// The soft limit of open files stays higher if the job needed that.
int run(const LaunchOptions& options);

// Asks the launcher that listens at `control` to let a replica leave after its step and not to
// start it again (its rank 0 gets SIGUSR1). Returns what the launcher says. Throws Error with its
// refusal, or if there is no launcher.
std::string drain_replica(const std::string& control, int replica);
// The same, but asks to start a replica that has left or was given up.
std::string admit_replica(const std::string& control, int replica);

}  // namespace sherd::launch
