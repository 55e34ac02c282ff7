// SPDX-License-Identifier: Apache-2.0
//
// On a mesh, one model becomes two: the model of the ranks of a replica, and the model of the
// ranks, one in each replica, that have the same shards of the first. Thread rule: pure functions.
#pragma once

#include "exchange/exchange.h"

namespace sherd::exchange {

struct MeshPosition {
  int shard_index = 0;  // This rank's position on the shard axis.
  int replicas = 1;
  // Owners are the ranks of both axes instead of those of the shard axis: the model is cut into
  // ranks x replicas shards, of which rank f of replica r has number f * replicas + r.
  bool both_axes = false;
};

// Flats are cut as in the model or, with both_axes, so that rank f of a replica holds the shards of
// owners f * replicas to f * replicas + replicas - 1; gradients are then summed to where each
// reduction says.
ModelSpec model_within(const ModelSpec& model, const MeshPosition& position);

// Flats are what this rank has of those of model_within(): every parameter is there, in the same
// order, with the elements that lie in the shard, which may be none. They are cut as the model is
// or, if replicas are equal, evenly; then there are only gradients, which are replicated. They are
// sent like those of `model`.
ModelSpec model_across(const ModelSpec& model, const MeshPosition& position);

}  // namespace sherd::exchange
