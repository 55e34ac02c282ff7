// SPDX-License-Identifier: Apache-2.0
//
// RestartBudget counts how often something was started again within a window of time, as systemd
// does: the launcher gives up a replica whose budget is spent, and the simulator its replica. Thread
// rule: a value.
#pragma once

#include <deque>
#include "base/clock.h"

namespace sherd {

struct RestartBudgetOptions {
  int restarts_max = 30;
  // 0: they count for ever.
  Duration window = std::chrono::hours(1);
};

class RestartBudget {
 public:
  explicit RestartBudget(const RestartBudgetOptions& options)
      : options_(options) {}

  // Takes one restart. False, and nothing is taken: none is left. REQUIRES: times do not go back.
  bool take(Instant now);
  void renew() { recent_.clear(); }

 private:
  RestartBudgetOptions options_;
  std::deque<Instant> recent_;  // Within the window.
};

}  // namespace sherd
