// SPDX-License-Identifier: Apache-2.0
//
// What programs for GPUs train. Pure functions.
#pragma once

#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/gpt.h>

namespace sherd::bench {

// As good as nothing to compute in 25 units, so that what counts is the host's work.
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
