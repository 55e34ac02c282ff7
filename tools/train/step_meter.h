// SPDX-License-Identifier: Apache-2.0
//
// StepMeter measures what one step costs this rank, from where it is made.
// Thread rule: the thread that trains.
#pragma once

#include <string>
#include "train/step_metrics.h"

namespace sherd::tools {

class StepMeter {
 public:
  StepMeter();

  // Since then. Resident memory is 0 where /proc does not say.
  RankMetrics measure() const;

 private:
  double begin_s_;
  double busy_begin_s_;
};

// Seconds that a thread could run and had no core, from its /proc/.../schedstat:
// nanoseconds on a core, nanoseconds without one, and a count. 0 for another
// text.
double core_wait_s(const std::string& schedstat);

// Since 1970, UTC.
double unix_time_s();

}  // namespace sherd::tools
