// SPDX-License-Identifier: Apache-2.0
//
// Job runs the ranks of a plain job, which start and end together, on this host. It carries out the
// decisions of StopPolicy. Thread rule: one thread, the only one of the process.
#pragma once

#include <optional>
#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "base/clock.h"
#include "base/status.h"
#include "launch/port.h"
#include "launch/start_plan.h"
#include "launch/stop_policy.h"
#include "launch/supervisor.h"

namespace sherd::launch {

class Job {
 public:
  // Both must outlive the job. REQUIRES: descriptors 0, 1 and 2 are open.
  Job(const LaunchOptions& options, const Clock& clock);
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // Returns the exit status when all ranks have ended. May be called only once.
  int run();

 private:
  // Starts all ranks.
  StartStatus start_all();
  StartStatus start_ranks(const StartPlan& plan, int port);
  void say_where_output_goes();
  Result<int> choose_port();
  void watch();
  void carry_out(const std::optional<SignalRequest>& action);
  void report();
  std::string log_path(int rank) const;

  const LaunchOptions& options_;
  const Clock& clock_;
  ReservedPort port_;      // Used if no port was requested.
  Supervisor supervisor_;  // A rank's slot is its number.
  StopPolicy policy_;
  std::vector<int> early_signals_;  // They arrived while ranks were started.
};

}  // namespace sherd::launch
