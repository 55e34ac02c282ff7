// SPDX-License-Identifier: Apache-2.0
#include "base/bfloat16.h"

#include <array>
#include <bit>

namespace sherd {
namespace {

// Inlined where wider vectors are allowed.
#define SHERD_INLINE __attribute__((always_inline)) inline

SHERD_INLINE float widened(std::uint16_t number) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(number) << 16U);
}

SHERD_INLINE std::uint16_t narrowed(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t nearest = (bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U;
  const bool nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? 0x7fc0U : nearest);
}

SHERD_INLINE void widen(
    const std::uint16_t* from, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = widened(from[i]);
  }
}

SHERD_INLINE void narrow(
    const float* from, std::size_t count, std::uint16_t* to) {
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = narrowed(from[i]);
  }
}

// A few vectors at a time, which stay in registers from input to input.
constexpr std::size_t kRegisterElements = 64;

SHERD_INLINE void put(float number, std::uint16_t& to) {
  to = narrowed(number);
}
SHERD_INLINE void put(float number, float& to) { to = number; }

template <std::size_t kCount, typename Out>
SHERD_INLINE void sum_piece(
    std::span<const std::uint16_t* const> inputs, std::size_t begin, Out* to) {
  std::array<float, kCount> held;
  for (std::size_t i = 0; i < kCount; ++i) {
    held[i] = widened(inputs[0][begin + i]);
  }
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    for (std::size_t i = 0; i < kCount; ++i) {
      held[i] += widened(inputs[r][begin + i]);
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    put(held[i], to[i]);
  }
}

template <typename Out>
SHERD_INLINE void sum(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    Out* to) {
  std::size_t i = 0;
  for (; i + kRegisterElements <= count; i += kRegisterElements) {
    sum_piece<kRegisterElements>(inputs, begin + i, to + i);
  }
  for (; i < count; ++i) {
    sum_piece<1>(inputs, begin + i, to + i);
  }
}

#ifdef __x86_64__
#ifdef __clang__
#define SHERD_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#else
#define SHERD_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,prefer-vector-width=512")))
#endif

__attribute__((target("avx2"))) void widen_avx2(
    const std::uint16_t* from, std::size_t count, float* to) {
  widen(from, count, to);
}

__attribute__((target("avx2"))) void narrow_avx2(
    const float* from, std::size_t count, std::uint16_t* to) {
  narrow(from, count, to);
}

template <typename Out>
__attribute__((target("avx2"))) void sum_avx2(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    Out* to) {
  sum(inputs, begin, count, to);
}

template <typename Out>
SHERD_AVX512 void sum_avx512(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    Out* to) {
  sum(inputs, begin, count, to);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0;
  return has;
}
#endif

template <typename Out>
void sum_with_best(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    Out* to) {
#ifdef __x86_64__
  if (has_avx512()) {
    return sum_avx512(inputs, begin, count, to);
  }
  if (has_avx2()) {
    return sum_avx2(inputs, begin, count, to);
  }
#endif
  sum(inputs, begin, count, to);
}

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

void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t count,
    std::uint16_t* to) {
  sum_with_best(inputs, 0, count, to);
}

void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    float* to) {
  sum_with_best(inputs, begin, count, to);
}

}  // namespace sherd
