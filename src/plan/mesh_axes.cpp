// SPDX-License-Identifier: Apache-2.0
#include "plan/mesh_axes.h"

#include <cstdint>
#include "base/check.h"

namespace sherd::plan {
namespace {

std::int64_t places(const MeshShape& shape) {
  return std::int64_t{shape.replicate} * shape.shard;
}

std::string divisors(int value) {
  std::string text;
  for (int divisor = 1; divisor <= value; ++divisor) {
    if (value % divisor == 0) {
      text += str(text.empty() ? "" : ", ", divisor);
    }
  }
  return text;
}

}  // namespace

std::string describe(const MeshShape& shape) {
  return str("replicate ", shape.replicate, " x shard ", shape.shard);
}

void check_mesh(const MeshShape& shape, int world_size) {
  SHERD_CHECK(
      shape.replicate >= 1 && shape.shard >= 1,
      "[plan] a mesh axis has at least 1 rank, got ", describe(shape));
  SHERD_CHECK(
      places(shape) == world_size, "[plan] mesh ", describe(shape), " has ",
      places(shape), " places, but the world has ", world_size, " ranks");
}

MeshShape mesh_of_world(int world_size, int shard) {
  SHERD_CHECK(
      world_size >= 1, "[plan] a world has at least 1 rank, got ", world_size);
  SHERD_CHECK(
      shard >= 1 && world_size % shard == 0, "[plan] ", world_size,
      " ranks cannot be divided into shard groups of ", shard,
      "; possible sizes: ", divisors(world_size));
  return {.replicate = world_size / shard, .shard = shard};
}

int rank_of(const MeshShape& shape, const MeshPlace& place) {
  SHERD_CHECK(
      place.replicate_index >= 0 && place.replicate_index < shape.replicate &&
          place.shard_index >= 0 && place.shard_index < shape.shard,
      "[plan] mesh ", describe(shape), " has no place (", place.replicate_index,
      ", ", place.shard_index, ")");
  return place.replicate_index * shape.shard + place.shard_index;
}

MeshPlace place_of(const MeshShape& shape, int rank) {
  SHERD_CHECK(
      rank >= 0 && rank < places(shape), "[plan] mesh ", describe(shape),
      " has no rank ", rank);
  return {
      .replicate_index = rank / shape.shard, .shard_index = rank % shape.shard};
}

std::vector<int> ranks_along(const MeshShape& shape, MeshAxis axis, int rank) {
  MeshPlace place = place_of(shape, rank);
  const bool shard = axis == MeshAxis::kShard;
  int& index = shard ? place.shard_index : place.replicate_index;
  const int size = shard ? shape.shard : shape.replicate;
  std::vector<int> ranks;
  for (index = 0; index < size; ++index) {
    ranks.push_back(rank_of(shape, place));
  }
  return ranks;
}

std::vector<std::vector<int>> groups_along(
    const MeshShape& shape, MeshAxis axis) {
  const bool shard = axis == MeshAxis::kShard;
  const int count = shard ? shape.replicate : shape.shard;
  std::vector<std::vector<int>> groups;
  for (int group = 0; group < count; ++group) {
    const int first = shard ? group * shape.shard : group;
    groups.push_back(ranks_along(shape, axis, first));
  }
  return groups;
}

}  // namespace sherd::plan
