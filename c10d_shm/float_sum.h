// SPDX-License-Identifier: Apache-2.0
//
// The sum of fp32 arrays in their order, using the widest vectors that the processor has although
// the library is compiled for older ones. Thread rule: a pure function.
#pragma once

#include <cstddef>
#include <span>

namespace sherd::c10d_shm {

// to[i] = (inputs[0][i] + inputs[1][i]) + inputs[2][i] and so on, each sum rounded to fp32. `to` may
// be one of the inputs. REQUIRES: at least one input, `count` elements in each.
void sum_floats(
    std::span<const float* const> inputs, std::size_t count, float* to);

}  // namespace sherd::c10d_shm
