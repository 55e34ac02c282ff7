// SPDX-License-Identifier: Apache-2.0
//
// What the ranks that own the same shards, one in each replica, have to sum.
// Pure.
#pragma once

#include "exchange/exchange.h"

namespace sherd::exchange {

// The model whose flats are the shards that `shard_index` owns of those of
// `model`, cut evenly over the replicas: every parameter is there, in the same
// order, with the elements that lie in the shard, which may be none. Gradients
// only, replicated; they travel as those of `model` do.
ModelSpec replica_model(const ModelSpec& model, int shard_index, int replicas);

}  // namespace sherd::exchange
