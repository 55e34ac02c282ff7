// SPDX-License-Identifier: Apache-2.0
//
// Backoff is the exponential backoff between tries of something that failed: each wait is twice as
// long as the one before, up to a limit. It only counts; its owner waits. Thread rule: a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include "base/check.h"
#include "base/clock.h"

namespace sherd {

struct BackoffOptions {
  Duration first{0};
  Duration longest{0};
  // The first wait after a reset is zero, and `first` is the second.
  bool starts_at_zero = false;
};

class Backoff {
 public:
  // REQUIRES: 0 < first <= longest.
  explicit Backoff(const BackoffOptions& options) : options_(options) {
    SHERD_ASSERT(
        Duration(0) < options.first && options.first <= options.longest);
    reset();
  }

  // How long to wait before the next try.
  Duration next() {
    const Duration wait = next_;
    next_ = wait == Duration(0) ? options_.first
                                : std::min(2 * wait, options_.longest);
    return wait;
  }

  // At least half of that wait, and as much of the rest as `random` gives, so that the many clients
  // of a lost peer do not come back together.
  Duration next_jittered(std::uint64_t random) {
    const Duration full = next();
    const auto half = static_cast<std::uint64_t>(full.count()) / 2;
    return full - Duration(static_cast<std::int64_t>(random % (half + 1)));
  }

  // A try has succeeded.
  void reset() {
    next_ = options_.starts_at_zero ? Duration(0) : options_.first;
  }

 private:
  BackoffOptions options_;
  Duration next_{0};
};

}  // namespace sherd
