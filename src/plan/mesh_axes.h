// SPDX-License-Identifier: Apache-2.0
//
// The mesh of data-parallel ranks: `replicate` x `shard`, the shard axis
// innermost, so that ranks of one shard group are neighbours and usually on one
// host: rank = replicate_index * F + shard_index.
// Thread rule: pure functions and values.
#pragma once

#include <string>
#include <vector>

namespace sherd::plan {

enum class MeshAxis {
  kReplicate,  // Ranks along it hold the same shard.
  kShard,      // Ranks along it hold the shards of one replica.
};

// R x F ranks.
struct MeshShape {
  int replicate = 1;
  int shard = 1;

  bool operator==(const MeshShape&) const = default;
};

struct MeshPlace {
  int replicate_index = 0;
  int shard_index = 0;

  bool operator==(const MeshPlace&) const = default;
};

// Throws unless both axes have at least one rank and there are exactly
// `world_size` places.
void check_mesh(const MeshShape& shape, int world_size);

// The shape that fills the world with shard groups of `shard` ranks. Throws,
// naming the sizes that would do, unless `shard` divides the world.
MeshShape mesh_of_world(int world_size, int shard);

// REQUIRES of all below: a shape that passed check_mesh. They throw when the
// rank or place lies outside of it.

int rank_of(const MeshShape& shape, const MeshPlace& place);
MeshPlace place_of(const MeshShape& shape, int rank);

// The ranks one meets when only this index changes, `rank` among them,
// ascending.
std::vector<int> ranks_along(const MeshShape& shape, MeshAxis axis, int rank);

// All such groups of an axis, ordered by their first rank: what every rank
// needs where groups are made collectively.
std::vector<std::vector<int>> groups_along(
    const MeshShape& shape, MeshAxis axis);

// "replicate 2 x shard 4".
std::string describe(const MeshShape& shape);

}  // namespace sherd::plan
