// SPDX-License-Identifier: Apache-2.0
//
// Where the parameters of ranks that share memory lie: whole units, and this rank's part of them.
// Sharded units lie whole in the segment, once. A shard is a slice of that or, if whole units have
// another dtype, private; its gradient is private, too, unless gradients are shared. Replicated
// units are private to each rank, except for their gradients. It moves nothing between ranks.
// Thread rule: one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>
#include "exchange/exchange.h"
#include "exchange/shared_layout.h"
#include "world/host_segment.h"

namespace sherd::exchange {

class SharedUnits {
 public:
  // Everything must outlive this, except the segment, which its tensors keep alive.
  SharedUnits(
      const ModelSpec& model,
      const SharedLayout& layout,
      int rank,
      const std::shared_ptr<shm::HostSegment>& segment);

  ShardMemory shard(UnitId unit, int flat) const {
    return shards_[static_cast<std::size_t>(unit)]
                  [static_cast<std::size_t>(flat)];
  }
  std::vector<at::Tensor> shards(UnitId unit) const;
  // In the dtype of whole units.
  void* whole(UnitId unit, int flat) const {
    return whole_[static_cast<std::size_t>(unit)]
                 [static_cast<std::size_t>(flat)];
  }
  // The whole gradient of a rank. For replicated units it is the rank's own or, if ranks own none,
  // the same for all, in which each shows the others its slice of the sum; for sharded units it is
  // that of all ranks. REQUIRES: it lies in the segment.
  at::Tensor gradient_of(int rank, UnitId unit, int flat) const;
  // The bytes of the slices that this rank shows to others.
  std::int64_t shown_bytes() const { return shown_bytes_; }

  // Updates the casts of this rank's shards.
  void cast_shards() const;

 private:
  std::byte* base() const;
  void add_gradient(
      UnitId unit,
      int flat,
      const plan::ElementRange& own,
      ShardMemory& memory) const;

  const ModelSpec& model_;
  const SharedLayout& layout_;
  const int rank_;
  const std::shared_ptr<shm::HostSegment> segment_;
  std::vector<std::vector<ShardMemory>> shards_;
  std::vector<std::vector<void*>> whole_;
  std::vector<at::Tensor> private_casts_;  // Of replicated units.
  std::int64_t shown_bytes_ = 0;
};

}  // namespace sherd::exchange
