// SPDX-License-Identifier: Apache-2.0
//
// AwakeClock is a clock that stands still while its process does (stopped, swapped out, waiting for
// a disk), so that a coordinator that wakes up does not mistake its own sleep for the silence of
// others. A gap between two readings counts for at most `gap_max`. Thread rule: one thread.
#pragma once

#include <algorithm>
#include "base/clock.h"

namespace sherd::ft {

class AwakeClock final : public Clock {
 public:
  // `clock` must outlive it. REQUIRES: while awake, its user reads it more often than every
  // `gap_max`.
  AwakeClock(const Clock& clock, Duration gap_max)
      : clock_(clock), gap_max_(gap_max), read_(clock.now()), now_(read_) {}

  Instant now() const override {
    const Instant read = clock_.now();
    const Duration gap = read - read_;
    now_ += std::min(gap, gap_max_);
    slept_ += std::max(gap - gap_max_, Duration(0));
    read_ = read;
    return now_;
  }
  Duration slept() const { return slept_; }

 private:
  const Clock& clock_;
  Duration gap_max_;
  mutable Instant read_;
  mutable Instant now_;
  mutable Duration slept_{0};
};

}  // namespace sherd::ft
