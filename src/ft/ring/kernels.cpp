// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/kernels.h"

namespace sherd::ft::ring {

void scale(
    float* __restrict out,
    const float* __restrict in,
    float factor,
    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = factor * in[i];
  }
}

void add_two_scaled(
    float* __restrict out,
    const float* __restrict first,
    float first_factor,
    const float* __restrict second,
    float second_factor,
    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = first_factor * first[i] + second_factor * second[i];
  }
}

void add_scaled_to(
    float* __restrict out,
    const float* __restrict in,
    float factor,
    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = out[i] + factor * in[i];
  }
}

void scale_and_add_zeros(
    float* __restrict out,
    const float* __restrict in,
    float factor,
    std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = factor * in[i] + 0.0F;
  }
}

}  // namespace sherd::ft::ring
