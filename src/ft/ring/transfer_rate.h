// SPDX-License-Identifier: Apache-2.0
//
// TransferRate measures how fast data frames come on one connection, while they come: a link that waits
// for gradients, or for a member before it, is not slow. Thread rule: a value.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include "base/clock.h"

namespace sherd::ft::ring {

class TransferRate {
 public:
  // How long a shorter frame takes says more about threads than about the link.
  static constexpr std::size_t kFrameBytesMin = std::size_t{64} << 10U;
  // So much must have come before anything is said.
  static constexpr std::uint64_t kBytesMin = std::uint64_t{4} << 20U;
  // What came before as much counts half.
  static constexpr std::uint64_t kBytesMax = std::uint64_t{32} << 20U;
  // The thread of a ring moves hardly more; what is faster is not told apart.
  static constexpr std::uint64_t kFastest = 1'000'000'000;

  // The header of a data frame is here.
  void begins(Instant now) { began_ = now; }
  // And its last byte.
  void ends(std::size_t bytes, Instant now) {
    if (bytes < kFrameBytesMin) {
      return;
    }
    bytes_ += bytes;
    time_ += now - began_;
    if (bytes_ > kBytesMax) {
      bytes_ /= 2;
      time_ /= 2;
    }
  }

  // None: it is not known yet.
  std::optional<std::uint64_t> bytes_per_s() const {
    if (bytes_ < kBytesMin) {
      return std::nullopt;
    }
    const double speed =
        static_cast<double>(bytes_) / std::max(seconds(time_), 1e-6);
    return speed < static_cast<double>(kFastest)
        ? static_cast<std::uint64_t>(speed)
        : kFastest;
  }

 private:
  Instant began_{};
  std::uint64_t bytes_ = 0;
  Duration time_{0};
};

}  // namespace sherd::ft::ring
