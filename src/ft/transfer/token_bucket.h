// SPDX-License-Identifier: Apache-2.0
//
// TokenBucket limits bytes per second: a sender that is ahead of the rate has to wait. At most a
// tenth of a second of unused time is saved up. Thread rule: a value.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include "base/clock.h"

namespace sherd::ft::transfer {

class TokenBucket {
 public:
  // 0 means no limit.
  explicit TokenBucket(std::uint64_t bytes_per_s_max)
      : rate_(static_cast<double>(bytes_per_s_max)) {}

  // How long to wait before the next bytes; at 0, any number may be sent now.
  Duration wait(Instant now) const {
    return std::max(free_at_ - now, Duration(0));
  }
  // Counts bytes that were sent. REQUIRES: `now` does not go back.
  void take(std::uint64_t bytes, Instant now) {
    if (rate_ == 0) {
      return;
    }
    const double nanoseconds = static_cast<double>(bytes) / rate_ * 1e9;
    free_at_ = std::max(free_at_, now - kSaved) +
        Duration(static_cast<std::int64_t>(std::ceil(nanoseconds)));
  }

 private:
  static constexpr Duration kSaved = std::chrono::milliseconds(100);

  double rate_;
  Instant free_at_{0};  // When the bytes sent so far have used up their time.
};

}  // namespace sherd::ft::transfer
