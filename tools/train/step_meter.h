// SPDX-License-Identifier: Apache-2.0
//
// StepMeter measures the cost of one step on this rank, from its construction on. Thread rule: the
// training thread.
#pragma once

#include <string>
#include "train/step_metrics.h"

namespace sherd::tools {

class StepMeter {
 public:
  StepMeter();

  // The cost since then. Resident memory is 0 if /proc does not tell.
  RankMetrics measure() const;

 private:
  double begin_s_;
  double busy_begin_s_;
};

// How many seconds a thread was runnable but had no core, from its /proc/.../schedstat: nanoseconds
// on a core, nanoseconds without one, and a count. 0 for any other text.
double core_wait_s(const std::string& schedstat);

// Seconds since 1970, UTC.
double unix_time_s();

}  // namespace sherd::tools
