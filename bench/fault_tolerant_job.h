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
#include "bench/faults_bench.h"
#include "bench/step_log.h"

namespace sherd::bench {

class FaultTolerantJob {
 public:
  // Starts them and does not wait. Ranks hash what they train now and then, or, if its cost is
  // measured, wait until steps are permitted. `signals` must outlive this object. Throws Error if
  // that is impossible.
  FaultTolerantJob(
      const FaultsConfig& config,
      const StepPrograms& programs,
      const SignalFd& signals);
  // Kills processes that end() has not ended, and removes the folder unless the user named it.
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

  // REQUIRES: the cost is measured.
  void open_until(std::int64_t step);

  // Asks all replicas to leave after their step and waits. Throws Error if they do not, or not in
  // order.
  void end(std::chrono::seconds deadline);

 private:
  FaultTolerantJob(const std::string& folder, const SignalFd& signals);
  void start(const FaultsConfig& config, const StepPrograms& programs);
  std::vector<std::string> command_of(
      const FaultsConfig& config, const StepPrograms& programs) const;
  bool has_ended();  // If so, the launcher has been reaped.
  double kill_process(int process, const std::string& what);
  [[noreturn]] void fail(const std::string& what) const;

  const SignalFd& signals_;
  bool folder_is_temporary_ = false;
  std::string folder_;
  StepLogReader files_;
  std::string gate_;  // Its path; empty if there is none.
  std::optional<ChildProcess> launcher_;
  // The launcher's exit status, once it has ended.
  std::optional<int> exit_status_;
};

}  // namespace sherd::bench
