// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction, in single precision and without fused operations, so that the same
// numbers give the same bits on every machine. Ranges must not overlap. Thread rule: pure
// functions.
#pragma once

#include <cstdint>

namespace sherd::ft::ring {

// out = factor * in
void scale(float* out, const float* in, float factor, std::int64_t count);

// out = sum + factor * in
void add_scaled(
    float* out,
    const float* sum,
    const float* in,
    float factor,
    std::int64_t count);

// out = first_factor * first + second_factor * second; the same bits as scale() of the first, then
// add_scaled().
void add_two_scaled(
    float* out,
    const float* first,
    float first_factor,
    const float* second,
    float second_factor,
    std::int64_t count);

// out = out + in
void add(float* out, const float* in, std::int64_t count);

// out = out + factor * in; the same bits as scale() of the second, then add().
void add_scaled_to(
    float* out, const float* in, float factor, std::int64_t count);

// out = factor * in + 0; the same bits as scale(), then add_zeros().
void scale_and_add_zeros(
    float* out, const float* in, float factor, std::int64_t count);

// out = sum + 0; the same bits as add_scaled() with zeros.
void add_zeros(float* out, const float* sum, std::int64_t count);

}  // namespace sherd::ft::ring
