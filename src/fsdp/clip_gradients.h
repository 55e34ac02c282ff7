// SPDX-License-Identifier: Apache-2.0
//
// Clips gradients by their total p-norm. How ranks combine their norms is an argument, because it
// depends on the engine. Thread rule: the caller's lock.
#pragma once

#include <functional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/fsdp/fully_shard.h>

namespace sherd::fsdp {

// Returns the norm before scaling. `combine` replaces one fp64 number of this rank (the sum of
// |g|^p, or the largest |g| for p = infinity) by that of all ranks, in place.
double clip_gradients(
    const std::vector<at::Tensor>& leaves,
    double max_norm,
    const ClipOptions& options,
    const std::function<void(const at::Tensor&)>& combine);

}  // namespace sherd::fsdp
