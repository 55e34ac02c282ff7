// SPDX-License-Identifier: Apache-2.0
//
// FaultTolerantJob is a fault-tolerant run into which `sherd bench` injects faults: replicas of
// some ranks each (replica_rank.h) under a `sherd run --fault-tolerant` of their own. What they do
// is read from the step logs they write. They end with this process, however it ends. Thread rule:
// one thread, the only one of the process.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "base/process.h"
#include "bench/contender_job.h"
#include "bench/fault_metrics.h"
#include "bench/step_gate.h"
#include "bench/step_log_files.h"
#include "bench/workload.h"

namespace sherd::bench {

struct FaultTolerantJobSpec {
  std::string sherd;  // The program `sherd`.
  std::string rank;   // sherd-bench-rank
  Workload work;
  JobShape shape;
  std::string exchange = "auto";
  int hash_every = 0;
  // Steps wait until they are allowed.
  bool gated = false;
  // Where files and the launcher's log go; empty: a temporary one.
  std::string folder;
  std::vector<std::string> environment;  // "NAME=value", all of it.
};

class FaultTolerantJob {
 public:
  // Starts them and does not wait. `signals` must outlive this. Throws Error when
  // that is impossible.
  FaultTolerantJob(
      const FaultTolerantJobSpec& setup, const StopSignalFd& signals);
  // Kills what end() has not ended.
  ~FaultTolerantJob();
  FaultTolerantJob(const FaultTolerantJob&) = delete;
  FaultTolerantJob& operator=(const FaultTolerantJob&) = delete;

  // As far as they have been read.
  const std::vector<StepLog>& logs() const { return files_.logs(); }

  // Reads on until `done` holds. Throws Error with the launcher's last lines when
  // it ended or that took too long, and Interrupted. `what` says what is waited
  // for: "replica 1 to come back".
  void wait_until(
      const std::string& what,
      std::chrono::seconds deadline,
      const std::function<bool()>& done);
  // The same without anything to wait for.
  void pause(double seconds) const;

  // kill -9. Returns when. Throws Error when there is no such process.
  double kill_rank(int replica, int rank);
  double kill_coordinator();

  // REQUIRES: gated.
  void open_until(std::int64_t step);

  // Asks all replicas to leave after their step and waits. Throws Error when they
  // do not, or not in order.
  void end(std::chrono::seconds deadline);

 private:
  void start(const FaultTolerantJobSpec& setup);
  std::vector<std::string> command_of(const FaultTolerantJobSpec& setup) const;
  bool has_ended();  // Then the launcher is reaped.
  double kill_process(int process, const std::string& what);
  [[noreturn]] void fail(const std::string& what) const;
  std::string last_lines() const;

  const StopSignalFd& signals_;
  bool folder_is_temporary_ = false;
  std::string folder_;
  StepLogReader files_;
  std::optional<StepGate> gate_;
  std::optional<ChildProcess> launcher_;
  std::optional<int> exit_status_;  // The launcher's, once it has ended.
};

}  // namespace sherd::bench
