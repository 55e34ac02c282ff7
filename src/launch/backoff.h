// SPDX-License-Identifier: Apache-2.0
//
// Backoff decides how long to wait before something that ended is started again:
// not at all the first time, then twice as long each time, and from the beginning
// once it has run well for a while. Pure. Thread rule: a value.
#pragma once

#include <algorithm>
#include "base/clock.h"

namespace sherd::launch {

struct BackoffOptions {
  // Before the second start in a row; doubled for each one after it.
  Duration first = std::chrono::seconds(1);
  Duration longest = std::chrono::seconds(60);
  // What ran so long was well, and its next start is a first one again.
  Duration well_after = std::chrono::minutes(5);
};

class Backoff {
 public:
  explicit Backoff(const BackoffOptions& options) : options_(options) {}

  // How long to wait, now that it ended after running for so long.
  Duration ended(Duration ran) {
    const Duration wait = ran >= options_.well_after ? Duration(0) : next_;
    next_ = wait == Duration(0) ? options_.first
                                : std::min(2 * wait, options_.longest);
    return wait;
  }
  void reset() { next_ = Duration(0); }

 private:
  BackoffOptions options_;
  Duration next_{0};
};

}  // namespace sherd::launch
