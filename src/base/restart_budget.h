// SPDX-License-Identifier: Apache-2.0
//
// RestartBudget counts how often something was restarted within a window of time, as systemd does.
// The launcher uses it to give up a replica whose budget is spent, and the simulator does the same.
// Thread rule: a value.
#pragma once

#include <deque>
#include <iterator>
#include "base/clock.h"

namespace sherd {

class RestartBudget {
 public:
  // With a window of 0, restarts count for ever.
  RestartBudget(int restarts_max, Duration window)
      : restarts_max_(restarts_max), window_(window) {}

  // Takes one restart. Returns false, and takes nothing, if none is left. REQUIRES: times do not go
  // back.
  bool take(Instant now) {
    while (window_ > Duration(0) && !recent_.empty() &&
           now - recent_.front() >= window_) {
      recent_.pop_front();
    }
    if (std::ssize(recent_) >= restarts_max_) {
      return false;
    }
    recent_.push_back(now);
    return true;
  }
  void renew() { recent_.clear(); }

 private:
  int restarts_max_;
  Duration window_;
  std::deque<Instant> recent_;  // Restarts within the window.
};

}  // namespace sherd
