// SPDX-License-Identifier: Apache-2.0
//
// What every exchange computes from the ranks' numbers and models, once it has them all. Thread rule:
// pure functions, except compare_models(), which uses the transport.
#pragma once

#include <span>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

// uint8, 1-D, a copy.
at::Tensor bytes_of(const void* data, std::size_t size);

// `values`, fp64 and contiguous, become what `op` makes of the bytes of all
// ranks' values, by rank; the same bits everywhere. A NaN of any rank stays.
void combine_scalars(
    std::span<const at::Tensor> bytes,
    ScalarReduceOp op,
    const at::Tensor& values);

// Collective. kPeerMismatch on every rank, naming the first difference and the
// ranks, when models differ.
[[nodiscard]] Status compare_models(
    world::Transport& transport, const ModelSpec& model);

}  // namespace sherd::exchange
