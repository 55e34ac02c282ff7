// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/float_sum.h"

#include <algorithm>
#include <array>

namespace sherd::c10d_shm {
namespace {

// Inlined into functions for which wider vectors are allowed.
#define SHERD_INLINE __attribute__((always_inline)) inline

// Sums of more than two inputs are kept here in between, in the first-level cache.
constexpr std::size_t kHeld = 1024;

// No iteration reads what another one writes: `to` is one of the inputs or separate from both.
SHERD_INLINE void add(
    const float* a, const float* b, std::size_t count, float* to) {
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (std::size_t i = 0; i < count; ++i) {
    to[i] = a[i] + b[i];
  }
}

SHERD_INLINE void sum(
    std::span<const float* const> inputs, std::size_t count, float* to) {
  if (inputs.size() == 2) {
    return add(inputs[0], inputs[1], count, to);
  }
  std::array<float, kHeld> held;
  for (std::size_t done = 0; done < count; done += kHeld) {
    const std::size_t part = std::min(kHeld, count - done);
    std::copy_n(inputs[0] + done, part, held.data());
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      add(held.data(), inputs[r] + done, part, held.data());
    }
    std::copy_n(held.data(), part, to + done);
  }
}

#ifdef __x86_64__
#ifdef __clang__
#define SHERD_AVX512 __attribute__((target("avx512f")))
#else
#define SHERD_AVX512 __attribute__((target("avx512f,prefer-vector-width=512")))
#endif

__attribute__((target("avx2"))) void sum_avx2(
    std::span<const float* const> inputs, std::size_t count, float* to) {
  sum(inputs, count, to);
}

SHERD_AVX512 void sum_avx512(
    std::span<const float* const> inputs, std::size_t count, float* to) {
  sum(inputs, count, to);
}

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}

bool has_avx512() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0;
  return has;
}
#endif

}  // namespace

void sum_floats(
    std::span<const float* const> inputs, std::size_t count, float* to) {
#ifdef __x86_64__
  if (has_avx512()) {
    return sum_avx512(inputs, count, to);
  }
  if (has_avx2()) {
    return sum_avx2(inputs, count, to);
  }
#endif
  sum(inputs, count, to);
}

}  // namespace sherd::c10d_shm
