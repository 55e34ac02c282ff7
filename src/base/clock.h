// SPDX-License-Identifier: Apache-2.0
//
// Time as an argument: code that waits or takes timestamps gets a Clock, so that tests and the
// simulator can control time. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace sherd {

using Duration = std::chrono::nanoseconds;
// Monotonic time since an arbitrary origin.
using Instant = std::chrono::nanoseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant now() const = 0;
};

// The machine's monotonic clock, which is read only here.
class SteadyClock final : public Clock {
 public:
  Instant now() const override {
    return std::chrono::duration_cast<Instant>(
        std::chrono::steady_clock::now().time_since_epoch());
  }
};

inline double seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

// The earlier of two times; an empty time is later than all others.
inline std::optional<Instant> earlier(
    const std::optional<Instant>& a, const std::optional<Instant>& b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

// The timeout of a poll() that waits until then, rounded up so that it never spins. Empty: no
// timeout.
inline int poll_ms(Instant now, const std::optional<Instant>& until) {
  constexpr std::int64_t kMost = 1 << 30;
  if (!until) {
    return -1;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      std::max(*until - now, Duration(0)));
  return static_cast<int>(std::min<std::int64_t>(left.count(), kMost));
}

}  // namespace sherd
