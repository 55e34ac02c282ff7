// SPDX-License-Identifier: Apache-2.0
//
// RestartBudget counts how often something was restarted within a window of time, as systemd does.
// The launcher uses it to give up a replica whose budget is spent, and the simulator does the same.
// Thread rule: a value.
#pragma once

#include <deque>
#include "base/clock.h"

namespace sherd {

struct RestartBudgetOptions {
  int restarts_max = 30;
  // 0: restarts count for ever.
  Duration window = std::chrono::hours(1);
};

class RestartBudget {
 public:
  explicit RestartBudget(const RestartBudgetOptions& options)
      : options_(options) {}

  // Takes one restart. Returns false, and takes nothing, if none is left. REQUIRES: times do not go
  // back.
  bool take(Instant now);
  void renew() { recent_.clear(); }

 private:
  RestartBudgetOptions options_;
  std::deque<Instant> recent_;  // Restarts within the window.
};

}  // namespace sherd
