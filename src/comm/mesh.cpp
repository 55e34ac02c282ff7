// SPDX-License-Identifier: Apache-2.0
#include <sherd/comm/world.h>

#include "base/check.h"

namespace sherd {

Mesh::Mesh(const World& world, const MeshOptions& options)
    : world_(world),
      replicate_size_(options.replicate),
      shard_size_(
          options.shard != 0 || options.replicate <= 0
              ? options.shard
              : world.size() / options.replicate) {
  SHERD_CHECK(
      replicate_size_ > 0 && shard_size_ > 0 &&
          static_cast<long long>(replicate_size_) * shard_size_ == world.size(),
      "[comm] expected replicate * shard to be the world size ", world.size(),
      ", found replicate ", options.replicate, " and shard ", options.shard,
      options.shard == 0 ? " (whatever is left)" : "");
}

std::vector<int> Mesh::replicate_ranks() const {
  std::vector<int> ranks;
  for (int i = 0; i < replicate_size_; ++i) {
    ranks.push_back(i * shard_size_ + shard_index());
  }
  return ranks;
}

std::vector<int> Mesh::shard_ranks() const {
  std::vector<int> ranks;
  for (int i = 0; i < shard_size_; ++i) {
    ranks.push_back(replicate_index() * shard_size_ + i);
  }
  return ranks;
}

}  // namespace sherd
