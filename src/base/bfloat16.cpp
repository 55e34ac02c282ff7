// SPDX-License-Identifier: Apache-2.0
#include "base/bfloat16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace sherd {
namespace {

// Inlined into functions that are compiled for wider vectors.
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

// Two neighbours are summed as one 32-bit word: the upper half is an fp32 except for its last bits,
// and the lower half is one after a shift. So vectors are never rearranged, which would cost more
// than the sums.
static_assert(
    std::endian::native == std::endian::little,
    "the lower half of a word comes first");
constexpr std::uint32_t kUpperHalf = 0xffff0000U;

struct FloatPair {
  float lower;
  float upper;
};

SHERD_INLINE std::uint32_t word_at(
    const std::uint16_t* numbers, std::size_t pair) {
  std::uint32_t word = 0;
  std::memcpy(&word, numbers + 2 * pair, sizeof(word));
  return word;
}

SHERD_INLINE FloatPair widened_pair(std::uint32_t word) {
  return {
      std::bit_cast<float>(word << 16U),
      std::bit_cast<float>(word & kUpperHalf)};
}

// The result is in the upper half; the lower half is undefined.
SHERD_INLINE std::uint32_t narrowed_in_place(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t nearest = bits + 0x7fffU + ((bits >> 16U) & 1U);
  return (bits & 0x7fffffffU) > 0x7f800000U ? 0x7fc00000U : nearest;
}

SHERD_INLINE void put_pair(
    FloatPair sums, std::uint16_t* to, std::size_t pair) {
  const std::uint32_t word = (narrowed_in_place(sums.upper) & kUpperHalf) |
      (narrowed_in_place(sums.lower) >> 16U);
  std::memcpy(to + 2 * pair, &word, sizeof(word));
}

SHERD_INLINE void put_pair(FloatPair sums, float* to, std::size_t pair) {
  to[2 * pair] = sums.lower;
  to[2 * pair + 1] = sums.upper;
}

SHERD_INLINE void put(float number, std::uint16_t& to) {
  to = narrowed(number);
}
SHERD_INLINE void put(float number, float& to) { to = number; }

// How many pairs are kept in fp32 from input to input, in the first-level cache.
constexpr std::size_t kPairsAtATime = 512;

// All inputs are read before anything is written, so `to` may be one of them.
template <typename Out>
SHERD_INLINE void sum_pairs(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t pairs,
    Out* to) {
  alignas(64) std::array<float, kPairsAtATime> lower;
  alignas(64) std::array<float, kPairsAtATime> upper;
  for (std::size_t i = 0; i < pairs; ++i) {
    const FloatPair first = widened_pair(word_at(inputs[0] + begin, i));
    lower[i] = first.lower;
    upper[i] = first.upper;
  }
  for (std::size_t r = 1; r < inputs.size(); ++r) {
    const std::uint16_t* const input = inputs[r] + begin;
    for (std::size_t i = 0; i < pairs; ++i) {
      const FloatPair next = widened_pair(word_at(input, i));
      lower[i] += next.lower;
      upper[i] += next.upper;
    }
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    put_pair({.lower = lower[i], .upper = upper[i]}, to, i);
  }
}

// Two inputs need no memory in between. No iteration reads what another one writes, because `to` is
// either one of the inputs or overlaps neither.
template <typename Out>
SHERD_INLINE void sum_pairs_of_two(
    const std::uint16_t* a,
    const std::uint16_t* b,
    std::size_t pairs,
    Out* to) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < pairs; ++i) {
    const FloatPair x = widened_pair(word_at(a, i));
    const FloatPair y = widened_pair(word_at(b, i));
    put_pair({.lower = x.lower + y.lower, .upper = x.upper + y.upper}, to, i);
  }
}

template <typename Out>
SHERD_INLINE void sum(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    Out* to) {
  const std::size_t all = count / 2;
  if (inputs.size() == 2) {
    sum_pairs_of_two(inputs[0] + begin, inputs[1] + begin, all, to);
  } else {
    for (std::size_t i = 0; i < all; i += kPairsAtATime) {
      const std::size_t pairs = std::min(kPairsAtATime, all - i);
      sum_pairs(inputs, begin + 2 * i, pairs, to + 2 * i);
    }
  }
  if (count % 2 == 1) {
    const std::size_t last = begin + count - 1;
    float held = widened(inputs[0][last]);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      held += widened(inputs[r][last]);
    }
    put(held, to[count - 1]);
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
