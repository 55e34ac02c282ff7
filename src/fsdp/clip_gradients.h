// SPDX-License-Identifier: Apache-2.0
//
// The p-norm of the gradients of leaves, and scaling by it. The way over the
// ranks is an argument. Thread rule: the caller's lock.
#pragma once

#include <functional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/fully_shard.h>

namespace sherd::fsdp {

// `combine` turns one fp64 number of this rank (sum of |g|^p, or the largest
// |g| for p = infinity) into that of all ranks, in place.
double clip_gradients(
    const std::vector<at::Tensor>& leaves,
    double max_norm,
    const ClipOptions& options,
    const std::function<void(const at::Tensor&)>& combine);

}  // namespace sherd::fsdp
