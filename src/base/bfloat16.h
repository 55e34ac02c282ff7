// SPDX-License-Identifier: Apache-2.0
//
// Kernels for arrays of bf16, the upper half of an fp32: widening, narrowing and sums. They use the
// widest vectors that the processor has, although the library is compiled for older processors; the
// bits are the same either way. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sherd {

void widen_bfloat16(const std::uint16_t* from, std::size_t count, float* to);

// Rounds to nearest, ties to even; every NaN becomes 0x7fc0, as in LibTorch.
void narrow_to_bfloat16(
    const float* from, std::size_t count, std::uint16_t* to);

// Adds the inputs in order, in fp32, and rounds once. `to` may be one of the inputs. REQUIRES: at
// least one input.
void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t count,
    std::uint16_t* to);

// The same for the elements from `begin` on, but not rounded.
void sum_bfloat16(
    std::span<const std::uint16_t* const> inputs,
    std::size_t begin,
    std::size_t count,
    float* to);

}  // namespace sherd
