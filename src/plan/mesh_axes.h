// SPDX-License-Identifier: Apache-2.0
//
// The mesh of data-parallel ranks, `replicate` x `shard`, with the shard axis innermost, so that
// the ranks of one shard group are neighbours and usually on one host: rank = replicate_index *
// shard + shard_index. Thread rule: pure functions and values.
#pragma once

#include <string>
#include <vector>

namespace sherd::plan {

enum class MeshAxis {
  kReplicate,  // The ranks along it hold the same shard.
  kShard,      // The ranks along it hold the shards of one replica.
};

struct MeshShape {
  int replicate = 1;
  int shard = 1;
};

// Throws unless both axes have at least one rank and their product is `world_size`.
void check_mesh(const MeshShape& shape, int world_size);

// The ranks of the group of `rank` along the axis, ascending, including `rank`. Throws if the mesh
// has no such rank. REQUIRES: check_mesh() accepts `shape`.
std::vector<int> ranks_along(const MeshShape& shape, MeshAxis axis, int rank);

}  // namespace sherd::plan
