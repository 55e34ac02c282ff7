// SPDX-License-Identifier: Apache-2.0
//
// The sum that every reduction is made of: one pass over W pieces in rank order, accumulated in
// fp32 (in fp64 if pieces or sum are fp64), so that the bits depend only on the order of ranks,
// never on timing or transport. Pure; runs on the calling thread only.
#pragma once

#include <span>
#include <ATen/core/Tensor.h>

namespace sherd::world {

// out = scale * (pieces[0] + pieces[1] + ...), plus out if `accumulate`. All are 1-D contiguous CPU
// tensors of out's numel; the pieces have one dtype and out may have another, among fp32, fp64,
// bf16 and fp16.
void sum_in_rank_order(
    std::span<const at::Tensor> pieces,
    double scale,
    bool accumulate,
    const at::Tensor& out);

}  // namespace sherd::world
