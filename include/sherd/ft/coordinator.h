// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a fault-tolerant run is one small process without LibTorch. It decides which
// replicas train together and which steps are committed, and keeps its decisions in a file.
// Replicas find it by its address. If it dies, replicas finish what they are computing and wait;
// started again with the same file, it continues where it was. The command `sherd coordinate` is
// this function. What it decides and why: docs/design/fault_tolerance.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace sherd::ft {

struct CoordinateOptions {
  // ---- behaviour ----

  // Where replicas connect; with port 0 a free port is taken. An address other than this host's own
  // needs a secret or certificates.
  std::string bind = "127.0.0.1:0";
  // The file of the log, on a disk of this host; it and its folder are made if they do not exist.
  // Use one file for each run, and never delete it while the run lasts: without it nobody knows
  // what was committed.
  std::string log;
  // Where the status page, /metrics and /status.json are served, to this host only. Empty: nowhere.
  std::string status;
  // A file that is written atomically as soon as the coordinator listens. Its first line is the
  // coordinator's address, "host:port"; the second line, if there is a status page, is that page's
  // address. Empty: no file.
  std::string ready_file;

  // A step is committed only by at least this many replicas. With a lower number, training survives
  // more failures, with fewer samples per step.
  int replicas_min = 1;
  // The first step waits until this many replicas have come, at least replicas_min, or until
  // start_timeout has passed.
  int replicas_start = 1;
  std::chrono::milliseconds start_timeout = std::chrono::seconds(60);
  // For when the log of the run is lost. A new log continues the run where its replicas are, once
  // all replicas that were ever in the run have answered or started again, and replicas_start are
  // present. If none of them knows of a run, it begins with the newest checkpoint that they have
  // loaded, after the samples that its steps took. False: with a new log the run begins at its
  // first step, and replicas that have loaded a later one are refused.
  bool recover_from_replicas = false;
  // Set it when a coordinator is restarted after the program of some replica has ended in order,
  // which the log does not record. Replicas that lack the last step are then told that the run has
  // ended, unless other replicas have that step and go on. False: they make the missing steps
  // again.
  bool run_has_ended = false;
  // How many samples each replica trains on in a step. While replicas are missing, a step has
  // fewer.
  std::int64_t samples_per_replica = 1;
  // How many samples all replicas together train on in a step, also while some are missing. Each
  // takes its share, in multiples of samples_multiple, which is a replica's number of ranks. 0:
  // samples_per_replica is used instead.
  std::int64_t global_batch = 0;
  std::int64_t samples_multiple = 1;

  // Who may connect: processes that have the bytes of secret_file, or a certificate of
  // tls_authority with the name "sherd-replica" (PEM files). Set one of the two. The coordinator's
  // own certificate has the name "sherd-coordinator".
  std::string secret_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_authority;

  // If no replica that has the last step was connected for this long, the run goes back to the
  // newest state that a connected replica has.
  std::chrono::milliseconds hold_time = std::chrono::seconds(60);

  // ---- performance ----

  // A replica that sends nothing for this long counts as lost. With a shorter time a slow replica
  // may be taken for a lost one.
  std::chrono::milliseconds dead_after = std::chrono::seconds(1);
  // Failures within this time of each other make one new epoch.
  std::chrono::milliseconds settle = std::chrono::milliseconds(30);
  // Members of a new epoch that are not connected to each other after this time are left out.
  std::chrono::milliseconds join_timeout = std::chrono::seconds(1);
  // A replica that made no progress for ten times as long as usual, and for at least this long,
  // counts as hanging and is left out.
  std::chrono::milliseconds hang_after = std::chrono::seconds(5);
  // The same for the first computations, which warm up; for activities that were not seen before,
  // such as a first optimizer step or a restore; and for what the program does between steps.
  std::chrono::milliseconds first_hang_after = std::chrono::seconds(60);
  // A replica that made no progress for three times as long as usual, and for at least this long,
  // is shown as slow.
  std::chrono::milliseconds slow_after = std::chrono::milliseconds(500);
  // How long a coordinator that was started again waits for the members of the last epoch.
  std::chrono::milliseconds reconnect_timeout = std::chrono::seconds(1);
  // When this time has passed after the first vote, the votes that have come make the step.
  std::chrono::milliseconds vote_timeout = std::chrono::seconds(2);
  // How long a replica that fails the others for the second time is left out. The time doubles with
  // each further failure.
  std::chrono::milliseconds left_out_min = std::chrono::seconds(1);
  std::chrono::milliseconds left_out_max = std::chrono::seconds(60);
  // A connection on which no report has come after this time is closed.
  std::chrono::milliseconds first_report_timeout = std::chrono::seconds(5);
  // The longest time between two attempts to write a log that cannot be written.
  std::chrono::milliseconds log_retry_max = std::chrono::seconds(2);
};

// Runs until SIGINT or SIGTERM and returns 0. Returns 1, with the reason on stderr, if the log or
// an address is not available, or if the log belongs to another coordinator that was started later.
// Throws Error if an option makes no sense. REQUIRES: the process has no other thread. Signals are
// blocked or ignored while this runs; when it returns, they are as before. Raises the process's
// soft limit of descriptors to the hard one, and leaves it there.
int coordinate(const CoordinateOptions& options);

}  // namespace sherd::ft
