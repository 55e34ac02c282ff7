// SPDX-License-Identifier: Apache-2.0
//
// BackOff says how long to wait before the next try. Thread rule: a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include "base/check.h"
#include "base/clock.h"

namespace sherd::net {

class BackOff {
 public:
  struct Range {
    Duration min{0};
    Duration max{0};
  };
  // REQUIRES: 0 < min <= max.
  explicit BackOff(const Range& range) : range_(range), next_(range.min) {
    SHERD_ASSERT(Duration(0) < range.min && range.min <= range.max);
  }

  // From half of the full wait up to all of it, as `random` falls, so that many
  // that lost the same peer do not come back together. The full wait is min at
  // first, and twice as long each time, up to max.
  Duration wait(std::uint64_t random) {
    const Duration full = next_;
    next_ = std::min(range_.max, 2 * full);
    const auto half = static_cast<std::uint64_t>(full.count()) / 2;
    return full - Duration(static_cast<std::int64_t>(random % (half + 1)));
  }
  // A try has succeeded.
  void reset() { next_ = range_.min; }

 private:
  Range range_;
  Duration next_;
};

}  // namespace sherd::net
