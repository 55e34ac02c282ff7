// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a fault-tolerant run: one small process, without LibTorch,
// that decides which replicas train together and which steps are committed, and
// remembers it in a file. Replicas find it by its address. When it dies, replicas
// finish what they compute and wait; started again with the same file it goes on
// where it was. `sherd coordinate` is this function. What it decides and why:
// docs/design/fault_tolerance.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sherd::ft {

struct CoordinateOptions {
  // ---- behaviour ----

  // Where replicas connect; port 0 takes a free one. Another address
  // than this host's own needs a secret or certificates.
  std::string bind = "127.0.0.1:0";
  // The file of the log, on a disk of this host; it is made with its
  // folder when it does not exist. One file for each run, never deleted while the
  // run lasts: without it nobody knows what was committed.
  std::string log;
  // Where the status page, /metrics and /status.json are served; this
  // host only. Empty: nowhere.
  std::string status;
  // A file that is written atomically as soon as the coordinator listens. It
  // has its address, "host:port", and on a second line that of the status page
  // if there is one. Empty: no file.
  std::string ready_file;

  // No step is committed by fewer replicas. With a lower number, training
  // survives more failures, with fewer samples per step.
  int replicas_min = 1;
  // The first step waits until this many replicas, at least replicas_min, are
  // there, or until start_timeout has passed.
  int replicas_start = 1;
  std::chrono::milliseconds start_timeout = std::chrono::seconds(60);
  // For when the log of the run is lost. A new log goes on with the run where its
  // replicas are, once all that were ever in it have answered, or have started
  // anew, and replicas_start are there. If none has heard of a run, it begins with
  // the newest checkpoint that they have loaded, behind the samples that its steps
  // took. False: with a new log a run begins at its first step, and replicas that
  // have loaded a later one are refused.
  bool recover_from_replicas = false;
  // How many each replica trains in each step; while replicas are missing, a step
  // has fewer.
  std::int64_t samples_per_replica = 1;
  // How many all replicas together train in each step, whoever is missing: each
  // takes its share, in multiples of the second, a replica's number of ranks. 0:
  // samples_per_replica counts.
  std::int64_t global_batch = 0;
  std::int64_t samples_multiple = 1;

  // Who may connect: processes that have the bytes of this file, or a
  // certificate of this authority with the name "sherd-replica" (PEM files).
  // Set one of the two. This one's name is "sherd-coordinator".
  std::string secret_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;

  // When no holder of the last step was connected for so long, the run goes back to the newest state
  // that a connected replica holds.
  std::chrono::milliseconds hold_time = std::chrono::seconds(60);

  // ---- performance ----

  // A replica that sends nothing for this long counts as lost. A shorter time
  // may take a slow replica for a lost one.
  std::chrono::milliseconds dead_after = std::chrono::seconds(1);
  // Failures that come together within it make one new epoch.
  std::chrono::milliseconds settle = std::chrono::milliseconds(30);
  // Members of a new epoch that are not connected to each other by
  // then are left out.
  std::chrono::milliseconds join_timeout = std::chrono::seconds(1);
  // A replica that made no progress for ten times as long as usual, and for at
  // least this long, counts as hanging and is left out.
  std::chrono::milliseconds hang_after = std::chrono::seconds(5);
  // The same for the first computations, which warm up, for an activity that was not seen before, as a
  // first optimizer step or a restore, and for what the program does between steps.
  std::chrono::milliseconds first_hang_after = std::chrono::seconds(60);
  // One that made none for three times as long as usual, and for at least this
  // long, is shown as slow.
  std::chrono::milliseconds slow_after = std::chrono::milliseconds(500);
  // How long a coordinator that was started again waits for the members of the
  // last epoch.
  std::chrono::milliseconds reconnect_timeout = std::chrono::seconds(1);
  // How long after the first vote the votes that are there make the step.
  std::chrono::milliseconds vote_timeout = std::chrono::seconds(2);
  // How long a replica that fails the others for the second time is left out,
  // twice as long each time.
  std::chrono::milliseconds left_out_min = std::chrono::seconds(1);
  std::chrono::milliseconds left_out_max = std::chrono::seconds(60);
  // A connection on which no report has come by then is closed.
  std::chrono::milliseconds first_report_timeout = std::chrono::seconds(5);
  // The longest time between two attempts to write a log that cannot be written.
  std::chrono::milliseconds log_retry_max = std::chrono::seconds(2);
};

// Runs until SIGINT or SIGTERM and returns 0. Returns 1, having said why on
// stderr, when the log or an address cannot be had, or when the log belongs to
// another coordinator that was started later. Throws Error when an option makes
// no sense. REQUIRES: one thread, and the process has no other: signals are
// blocked or ignored while this runs, and as before when it returns. It raises the
// process's soft limit of descriptors to the hard one, and leaves it there.
int coordinate(const CoordinateOptions& options);

}  // namespace sherd::ft
