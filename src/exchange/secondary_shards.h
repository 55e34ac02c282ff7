// SPDX-License-Identifier: Apache-2.0
//
// SecondaryShards are a second copy of all units, cut over each group of G neighbouring ranks of
// the shard axis, so that a unit that was gathered once is gathered again within a group, like hpZ
// of ZeRO++ (arXiv 2306.10209). A rank keeps 1/G of each unit, in the dtype of whole units. Thread
// rule: that of the thread that gathers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include "exchange/exchange.h"
#include "plan/flat_layout.h"

namespace sherd::exchange {

struct UnshardedUnit;  // unit_transport.h

class SecondaryShards {
 public:
  // The model must outlive it. `rank` is this rank's position on the shard axis, whose size is a
  // multiple of `group_ranks`.
  SecondaryShards(
      const ModelSpec& model,
      int rank,
      int group_ranks,
      c10::Device device = c10::kCPU);

  bool in_group(int peer) const {
    return peer / group_ranks_ == rank_ / group_ranks_;
  }
  // Whether keep() was called for the unit's values of this generation.
  bool has(UnitId unit, std::uint64_t generation) const;
  // Copies this rank's part of a whole unit, on the current stream.
  void keep(
      UnitId unit, std::uint64_t generation, const UnshardedUnit& unsharded);
  // This rank's part of the flat.
  const at::Tensor& own(UnitId unit, int flat) const;
  // The elements that a rank of the group keeps: the shards of `axis / G` neighbours.
  plan::ElementRange part_of(UnitId unit, int flat, int peer) const;
  // The flat, cut over the group.
  plan::FlatLayout layout_of(UnitId unit, int flat) const;

  std::int64_t bytes() const { return bytes_; }

 private:
  struct Unit {
    std::vector<at::Tensor> flats;
    std::optional<std::uint64_t> generation;  // Unset: nothing is kept.
  };

  const ModelSpec& model_;
  const int rank_;
  const int group_ranks_;
  std::vector<Unit> units_;
  std::int64_t bytes_ = 0;
};

}  // namespace sherd::exchange
