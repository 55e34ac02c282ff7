// SPDX-License-Identifier: Apache-2.0
//
// HybridExchange combines two exchanges: one over the ranks that hold the model together (the shard
// axis) and one over the ranks that own the same shards, one in each replica. Units are gathered
// only within a replica. A unit's gradients are first summed to shards within the replica; as soon
// as that is done, while later units are still being reduced, the shards' gradients are summed
// across replicas. Owners may also be the ranks of both axes; shards are then gathered across
// replicas when they are published. Thread rule: see Exchange. Protocol: docs/design/hybrid.md.
#pragma once

#include <memory>
#include "exchange/exchange.h"
#include "exchange/hybrid_models.h"

namespace sherd::exchange {

enum class ReduceAcross {
  kInAnyOrder,
  // Across replicas, a communication hook averages in the order in which this rank has started to
  // reduce. That order must be the same on all ranks.
  kInOrder,
  // For devices, whose collectives must have one order over both axes: the exchange of the shard axis
  // makes them, too (DeviceBackends::across).
  kByShardAxis,
};

// `across` must support ModelPlacement::kReplicate or, with position.both_axes, kShard. Neither
// exchange is open yet.
std::unique_ptr<Exchange> make_hybrid_exchange(
    std::unique_ptr<Exchange> within,
    std::unique_ptr<Exchange> across,
    const MeshPosition& position,
    ReduceAcross reduce_across = ReduceAcross::kInAnyOrder,
    c10::Device device = c10::kCPU);

}  // namespace sherd::exchange
