// SPDX-License-Identifier: Apache-2.0
//
// Backoff computes the exponential backoff between attempts at something that failed: each wait is
// twice as long as the one before, up to a limit. It only computes; its owner waits. Thread rule: a
// value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
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

  // How long to wait before the next attempt.
  Duration next() {
    const Duration wait = next_;
    next_ = wait == Duration(0) ? options_.first
                                : std::min(2 * wait, options_.longest);
    return wait;
  }

  // Like next(), but with jitter: at least half of that wait, and a part of the rest that `random`
  // chooses, so that the many clients of a lost peer do not come back at once.
  Duration next_jittered(std::uint64_t random) {
    const Duration full = next();
    const auto half = static_cast<std::uint64_t>(full.count()) / 2;
    return full - Duration(static_cast<std::int64_t>(random % (half + 1)));
  }

  // Call it when an attempt has succeeded.
  void reset() {
    next_ = options_.starts_at_zero ? Duration(0) : options_.first;
  }

 private:
  BackoffOptions options_;
  Duration next_{0};
};

// "at once" or "in 2 s".
inline std::string in_words(Duration wait) {
  return wait == Duration(0) ? "at once" : str("in ", seconds(wait), " s");
}

}  // namespace sherd
