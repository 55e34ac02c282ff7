// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include "base/check.h"
#include "plan/mesh_axes.h"

namespace sherd {
namespace {

plan::MeshShape shape_for(int world_size, const MeshOptions& options) {
  SHERD_CHECK(
      options.replicate > 0,
      "[world] expected at least one replica in a mesh, found ",
      options.replicate);
  const plan::MeshShape shape{
      .replicate = options.replicate,
      .shard =
          options.shard != 0 ? options.shard : world_size / options.replicate};
  plan::check_mesh(shape, world_size);
  return shape;
}

}  // namespace

Mesh::Mesh(const World& world, const MeshOptions& options) : world_(world) {
  const plan::MeshShape shape = shape_for(world.size(), options);
  replicate_size_ = shape.replicate;
  shard_size_ = shape.shard;
}

std::vector<int> Mesh::replicate_ranks() const {
  return plan::ranks_along(
      {.replicate = replicate_size_, .shard = shard_size_},
      plan::MeshAxis::kReplicate, world_.rank());
}

std::vector<int> Mesh::shard_ranks() const {
  return plan::ranks_along(
      {.replicate = replicate_size_, .shard = shard_size_},
      plan::MeshAxis::kShard, world_.rank());
}

}  // namespace sherd
