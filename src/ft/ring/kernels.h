// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a reduction, in single precision and without fused
// operations, so that the same numbers give the same bits on each machine.
// Ranges do not overlap. Thread rule: pure functions.
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

// out = sum + 0: as add_scaled() with zeros.
void add_zeros(float* out, const float* sum, std::int64_t count);

}  // namespace sherd::ft::ring
