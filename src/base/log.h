// SPDX-License-Identifier: Apache-2.0
//
// Log lines on stderr: "sherd: warning: ...". The launcher's prefix shows which rank wrote a line.
// Thread rule: any thread; each line is written as a whole.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include "base/check.h"
#include "base/clock.h"

namespace sherd {

void log_info(const std::string& message);
void log_warning(const std::string& message);
void log_error(const std::string& message);

// Limits warnings that a peer can cause as often as it likes: writes at most one per second, which
// says how many were left out before it. Thread rule: one thread.
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
