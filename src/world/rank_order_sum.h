// SPDX-License-Identifier: Apache-2.0
//
// The sum every reduction is made of: one pass over W pieces in rank order,
// accumulated in fp32 (in fp64 where pieces or sum are fp64), so that the bits depend on the
// order of ranks alone, never on timing or transport. Pure; on the calling
// thread alone.
#pragma once

#include <span>
#include <ATen/core/Tensor.h>

namespace sherd::world {

// out = scale * (pieces[0] + pieces[1] + ...), plus out when `accumulate`.
// All 1-D contiguous CPU tensors of out's numel; pieces of one dtype, out of
// any, among fp32, fp64, bf16, fp16.
void sum_in_rank_order(
    std::span<const at::Tensor> pieces,
    double scale,
    bool accumulate,
    const at::Tensor& out);

}  // namespace sherd::world
