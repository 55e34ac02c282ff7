// SPDX-License-Identifier: Apache-2.0
//
// Integer arithmetic of the planners: rounding, and products that saturate instead of overflowing.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sherd::plan {

// Larger than every size that a plan accepts, and small enough that three of them can be added.
inline constexpr std::int64_t kSizeCeiling = std::int64_t{1} << 61;

// Both functions: REQUIRES: value >= 0, step >= 1, and value + step does not overflow.
constexpr std::int64_t divide_up(std::int64_t value, std::int64_t step) {
  return (value + step - 1) / step;
}
constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) {
  return divide_up(value, step) * step;
}

// min(a * b, kSizeCeiling). REQUIRES: a, b >= 0.
constexpr std::int64_t multiply_capped(std::int64_t a, std::int64_t b) {
  return a != 0 && b > kSizeCeiling / a ? kSizeCeiling : a * b;
}

}  // namespace sherd::plan
