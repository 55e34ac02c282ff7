// SPDX-License-Identifier: Apache-2.0
//
// LimitedLog limits warnings that a peer can cause as often as it likes: it writes at most one per
// second, which says how many were left out before it. Thread rule: one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace sherd {

class LimitedLog {
 public:
  void warn(Instant now, const std::string& message) {
    if (last_ && now - *last_ < kEvery) {
      ++left_out_;
      return;
    }
    last_ = now;
    const auto left_out = std::exchange(left_out_, 0);
    log_warning(
        left_out == 0 ? message
                      : str(message, "; ", left_out,
                            " lines like this one were left out before it"));
  }

 private:
  static constexpr Duration kEvery = std::chrono::seconds(1);
  std::optional<Instant> last_;
  std::uint64_t left_out_ = 0;
};

}  // namespace sherd
