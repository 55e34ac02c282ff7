// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction, in single precision and without fused operations, so that the same
// numbers give the same bits on every machine. A factor of 1 leaves all bits as they are. Ranges
// must not overlap. Thread rule: pure functions.
#pragma once

#include <cstdint>

namespace sherd::ft::ring {

// out = factor * in
void scale(float* out, const float* in, float factor, std::int64_t count);

// out = first_factor * first + second_factor * second
void add_two_scaled(
    float* out,
    const float* first,
    float first_factor,
    const float* second,
    float second_factor,
    std::int64_t count);

// out = out + factor * in
void add_scaled_to(
    float* out, const float* in, float factor, std::int64_t count);

// out = factor * in + 0; the same bits as add_two_scaled() with zeros.
void scale_and_add_zeros(
    float* out, const float* in, float factor, std::int64_t count);

}  // namespace sherd::ft::ring
