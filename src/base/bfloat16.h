// SPDX-License-Identifier: Apache-2.0
//
// Arrays of bf16, which is the upper half of an fp32: as fp32, and back. With the
// vectors that the processor has, though the library is compiled for older ones;
// the bits are the same either way. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sherd {

void widen_bfloat16(const std::uint16_t* from, std::size_t count, float* to);

// To the nearest, in ties to the even one; any NaN becomes 0x7fc0. As LibTorch.
void narrow_to_bfloat16(
    const float* from, std::size_t count, std::uint16_t* to);

// The sum of the inputs in their order, added in fp32 and rounded once. `to` may
// be one of them. REQUIRES: at least one input.
void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t count,
    std::uint16_t* to);

// The same of elements `begin` on, not rounded.
void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    float* to);

}  // namespace sherd
