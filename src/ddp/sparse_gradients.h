// SPDX-License-Identifier: Apache-2.0
//
// Sparse gradients, those of embeddings with sparse(true), go around buckets:
// ranks tell each other indices and values at the end of a backward, and each
// adds them up in the order of ranks. Thread rule: one thread at a time.
#pragma once

#include <string>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::ddp {

// Collective. `mine`: coalesced, or undefined where this rank has none. The sum
// over ranks times `scale`, coalesced, the same bits everywhere; undefined when no
// rank has any. `like` is the parameter.
[[nodiscard]] Result<at::Tensor> sum_sparse(
    const at::Tensor& mine,
    const at::Tensor& like,
    double scale,
    world::Transport& via,
    const std::string& name);

}  // namespace sherd::ddp
