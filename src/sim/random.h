// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are the same on every machine, from one seed. Streams with different names
// are independent, so that what one part of a world draws does not change what another part gets.
// Thread rule: a value.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>
#include "base/hash.h"

namespace sherd::sim {

class Random {
 public:
  Random(std::uint64_t seed, std::string_view stream)
      : state_(Hash64().add(seed).add(stream).value()) {}

  std::uint64_t next() { return mix64(state_ += kIncrement); }
  // At least 0 and below 1.
  double uniform() {
    constexpr double kScale = 0x1.0p-53;
    constexpr unsigned kUnused = 11;
    return static_cast<double>(next() >> kUnused) * kScale;
  }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  // Below `count`. REQUIRES: `count` is not 0, and far below 2^64, so that no number is noticeably
  // favoured.
  std::uint64_t below(std::uint64_t count) { return next() % count; }

 private:
  static constexpr std::uint64_t kIncrement = 0x9e3779b97f4a7c15ULL;
  std::uint64_t state_;
};

}  // namespace sherd::sim
