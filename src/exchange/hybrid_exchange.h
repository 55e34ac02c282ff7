// SPDX-License-Identifier: Apache-2.0
//
// HybridExchange combines two exchanges: one over the ranks that hold the model together (the shard
// axis) and one over the ranks that own the same shards, one in each replica. Units are gathered within
// a replica only. A unit's gradients are first summed to shards within it; as soon as that is done,
// while later units are still on their way, the shards' gradients are summed across replicas. Owners may
// also be the ranks of both axes; shards are then gathered across replicas when they are published.
// Thread rule: see Exchange. Protocol: docs/design/hybrid.md.
#pragma once

#include <memory>
#include "exchange/exchange.h"
#include "exchange/hybrid_models.h"

namespace sherd::exchange {

enum class ReduceAcross {
  kInAnyOrder,
  // Means of replicas, by a communication hook, in the order in which this rank has started to
  // reduce. That must be the same on all ranks.
  kInOrder,
  // Likewise, by a hook or not, when a replica has ended its backward, from the last unit to the
  // first: between devices, whose collectives must have one order over both axes.
  kAtEnd,
};

// `across` must take ModelPlacement::kReplicate, or kShard with position.both_axes. Neither is open
// yet.
std::unique_ptr<Exchange> make_hybrid_exchange(
    std::unique_ptr<Exchange> within,
    std::unique_ptr<Exchange> across,
    const MeshPosition& position,
    ReduceAcross reduce_across = ReduceAcross::kInAnyOrder,
    c10::Device device = c10::kCPU);

}  // namespace sherd::exchange
