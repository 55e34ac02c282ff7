// SPDX-License-Identifier: Apache-2.0
//
// All-reduce of sparse gradients, those of embeddings with sparse(true), which have no place in
// buckets: at the end of a backward ranks gather all indices and values, and each rank sums them in
// rank order. That is done on the CPU, even if the gradients are on a device. Thread rule: one
// thread at a time.
#pragma once

#include <string>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::ddp {

// Collective. `mine` is undefined if this rank has no gradient; `like` is the parameter. Returns
// the sum over ranks times `scale`, coalesced, with the same bits on every rank; undefined if no
// rank has a gradient.
[[nodiscard]] Result<at::Tensor> sum_sparse(
    const at::Tensor& mine,
    const at::Tensor& like,
    double scale,
    world::Transport& via,
    const std::string& name);

}  // namespace sherd::ddp
