// SPDX-License-Identifier: Apache-2.0
#include "base/bfloat16.h"

#include <bit>

namespace sherd {
namespace {

// Inlined where wider vectors are allowed.
__attribute__((always_inline)) inline void widen(
    const std::uint16_t* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16U);
  }
}

__attribute__((always_inline)) inline void narrow(
    const float* from, std::size_t count, std::uint16_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t nearest =
        (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
    const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
    to[i] = static_cast<std::uint16_t>(nan ? 0x7fc0U : nearest);
  }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) void widen_avx2(
    const std::uint16_t* from, std::size_t count, float* to) {
  widen(from, count, to);
}

__attribute__((target("avx2"))) void narrow_avx2(
    const float* from, std::size_t count, std::uint16_t* to) {
  narrow(from, count, to);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

void widen_bfloat16(const std::uint16_t* from, std::size_t count, float* to) {
#ifdef __x86_64__
  if (has_avx2()) {
    return widen_avx2(from, count, to);
  }
#endif
  widen(from, count, to);
}

void narrow_to_bfloat16(
    const float* from, std::size_t count, std::uint16_t* to) {
#ifdef __x86_64__
  if (has_avx2()) {
    return narrow_avx2(from, count, to);
  }
#endif
  narrow(from, count, to);
}

}  // namespace sherd
