// SPDX-License-Identifier: Apache-2.0
//
// The models that programs for GPUs train. Pure functions.
#pragma once

#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/gpt.h>

namespace sherd::bench {

// 25 units with almost nothing to compute, so that the host's work dominates.
inline models::GptConfig tiny_gpt() {
  return {
      .layers = 24, .width = 64, .heads = 2, .sequence = 16, .vocabulary = 256};
}

// bf16 in forward and backward, gradients in fp32.
inline FullyShardOptions mixed_precision(
    Strategy strategy = Strategy::kFullShard) {
  FullyShardOptions options;
  options.strategy = strategy;
  options.exchange = ExchangeKind::kCollective;
  options.mixed_precision.param_dtype = at::kBFloat16;
  options.mixed_precision.reduce_dtype = at::kFloat;
  return options;
}

}  // namespace sherd::bench
