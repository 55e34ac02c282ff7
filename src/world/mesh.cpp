// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include <cstdint>

#include "base/check.h"

namespace sherd {

// The shard axis is innermost, so that the ranks of one shard group are neighbours and usually on
// one host: rank = replicate_index * shard_size + shard_index.
Mesh::Mesh(const World& world, const MeshOptions& options)
    : world_(world), replicate_size_(options.replicate) {
  SHERD_CHECK(
      replicate_size_ > 0,
      "[world] expected at least one replica in a mesh, found ",
      replicate_size_);
  shard_size_ =
      options.shard != 0 ? options.shard : world.size() / replicate_size_;
  const auto shape =
      str("replicate ", replicate_size_, " x shard ", shard_size_);
  SHERD_CHECK(
      shard_size_ >= 1, "[world] a mesh axis has at least 1 rank, got ", shape);
  const auto places = std::int64_t{replicate_size_} * shard_size_;
  SHERD_CHECK(
      places == world.size(), "[world] mesh ", shape, " has ", places,
      " places, but the world has ", world.size(), " ranks");
}

std::vector<int> Mesh::replicate_ranks() const {
  std::vector<int> ranks;
  for (int replica = 0; replica < replicate_size_; ++replica) {
    ranks.push_back(replica * shard_size_ + shard_index());
  }
  return ranks;
}

std::vector<int> Mesh::shard_ranks() const {
  std::vector<int> ranks;
  for (int shard = 0; shard < shard_size_; ++shard) {
    ranks.push_back(replicate_index() * shard_size_ + shard);
  }
  return ranks;
}

}  // namespace sherd
