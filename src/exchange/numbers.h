// SPDX-License-Identifier: Apache-2.0
//
// What every exchange computes from the ranks' numbers and models once it has all of them. Thread
// rule: pure functions, except compare_models(), which uses the transport.
#pragma once

#include <span>
#include <ATen/core/Tensor.h>
#include "base/status.h"
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

// A copy of the bytes, as uint8, 1-D.
at::Tensor bytes_of(const void* data, std::size_t size);

// Replaces `values`, fp64 and contiguous, by the result of `op` over the bytes of all ranks'
// values, by rank, with the same bits on every rank. A NaN of any rank stays.
void combine_scalars(
    std::span<const at::Tensor> bytes,
    ScalarReduceOp op,
    const at::Tensor& values);

// Collective. Returns kPeerMismatch on every rank, naming the first difference and the ranks, if
// models differ.
[[nodiscard]] Status compare_models(
    world::Transport& transport, const ModelSpec& model);

}  // namespace sherd::exchange
