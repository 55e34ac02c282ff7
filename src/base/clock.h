// SPDX-License-Identifier: Apache-2.0
//
// Time as an argument: code that waits or stamps takes a Clock, so that tests and the simulator can
// invent time. Thread rule: any thread.
#pragma once

#include <chrono>

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

}  // namespace sherd
