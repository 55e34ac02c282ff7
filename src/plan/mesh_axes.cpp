// SPDX-License-Identifier: Apache-2.0
#include "plan/mesh_axes.h"

#include <cstdint>
#include "base/check.h"

namespace sherd::plan {
namespace {

std::int64_t places(const MeshShape& shape) {
  return std::int64_t{shape.replicate} * shape.shard;
}

// Returns text such as "replicate 2 x shard 4".
std::string describe(const MeshShape& shape) {
  return str("replicate ", shape.replicate, " x shard ", shape.shard);
}

}  // namespace

void check_mesh(const MeshShape& shape, int world_size) {
  SHERD_CHECK(
      shape.replicate >= 1 && shape.shard >= 1,
      "[plan] a mesh axis has at least 1 rank, got ", describe(shape));
  SHERD_CHECK(
      places(shape) == world_size, "[plan] mesh ", describe(shape), " has ",
      places(shape), " places, but the world has ", world_size, " ranks");
}

std::vector<int> ranks_along(const MeshShape& shape, MeshAxis axis, int rank) {
  SHERD_CHECK(
      rank >= 0 && rank < places(shape), "[plan] mesh ", describe(shape),
      " has no rank ", rank);
  const bool shard = axis == MeshAxis::kShard;
  const int size = shard ? shape.shard : shape.replicate;
  const int first =
      shard ? rank / shape.shard * shape.shard : rank % shape.shard;
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) {
    ranks.push_back(first + i * (shard ? 1 : shape.shard));
  }
  return ranks;
}

}  // namespace sherd::plan
