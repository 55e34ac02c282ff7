// SPDX-License-Identifier: Apache-2.0
//
// FaultTolerantJob is a fault-tolerant run into which `sherd bench` injects faults: replicas of
// several ranks each (replica_rank.h) under a `sherd run --fault-tolerant` of their own. It reads
// what they do from their step logs. They end when this process ends, however that happens. Thread
// rule: one thread, the only one of the process.
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
#include "bench/step_log.h"
#include "bench/workload.h"

namespace sherd::bench {

struct FaultTolerantJobSpec {
  std::string sherd;  // The program `sherd`.
  std::string rank;   // sherd-bench-rank
  Workload work;
  JobShape shape;
  std::string exchange = "auto";
  int hash_every = 0;
  // Steps wait until they are permitted.
  bool gated = false;
  // Where files and the launcher's log go; a temporary folder if empty.
  std::string folder;
  // Flags of `sherd run` for its coordinator; others have their defaults.
  std::vector<std::string> coordinator_flags;
  // The complete environment, "NAME=value" each.
  std::vector<std::string> environment;
};

class FaultTolerantJob {
 public:
  // Starts them and does not wait. `signals` must outlive this object. Throws Error if that is
  // impossible.
  FaultTolerantJob(
      const FaultTolerantJobSpec& setup, const StopSignalFd& signals);
  // Kills processes that end() has not ended.
  ~FaultTolerantJob();
  FaultTolerantJob(const FaultTolerantJob&) = delete;
  FaultTolerantJob& operator=(const FaultTolerantJob&) = delete;

  // As far as they have been read.
  const std::vector<StepLog>& logs() const { return files_.logs(); }

  // Reads on until `done` holds. Throws Error with the launcher's last lines if it ended or that
  // took too long; and Interrupted. `what` says what is waited for: "replica 1 to come back".
  void wait_until(
      const std::string& what,
      std::chrono::seconds deadline,
      const std::function<bool()>& done);
  // The same without a condition.
  void pause(double seconds) const;

  // Kills the rank with SIGKILL and returns when. Throws Error if there is no such process.
  double kill_rank(int replica, int rank);
  double kill_coordinator();

  // REQUIRES: gated.
  void open_until(std::int64_t step);

  // Asks all replicas to leave after their step and waits. Throws Error if they do not, or not in
  // order.
  void end(std::chrono::seconds deadline);

 private:
  void start(const FaultTolerantJobSpec& setup);
  std::vector<std::string> command_of(const FaultTolerantJobSpec& setup) const;
  bool has_ended();  // If so, the launcher has been reaped.
  double kill_process(int process, const std::string& what);
  [[noreturn]] void fail(const std::string& what) const;

  const StopSignalFd& signals_;
  bool folder_is_temporary_ = false;
  std::string folder_;
  StepLogReader files_;
  std::optional<StepGate> gate_;
  std::optional<ChildProcess> launcher_;
  // The launcher's exit status, once it has ended.
  std::optional<int> exit_status_;
};

}  // namespace sherd::bench
