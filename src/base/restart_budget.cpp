// SPDX-License-Identifier: Apache-2.0
#include "base/restart_budget.h"

namespace sherd {

bool RestartBudget::take(Instant now) {
  const Duration window = options_.window;
  while (window > Duration(0) && !recent_.empty() &&
         now - recent_.front() >= window) {
    recent_.pop_front();
  }
  if (std::ssize(recent_) >= options_.restarts_max) {
    return false;
  }
  recent_.push_back(now);
  return true;
}

}  // namespace sherd
