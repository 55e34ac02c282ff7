// SPDX-License-Identifier: Apache-2.0
#include "exchange/secondary_shards.h"

#include <ATen/ops/empty.h>

#include "base/copy_bytes.h"
#include "exchange/unit_transport.h"

namespace sherd::exchange {

SecondaryShards::SecondaryShards(
    const ModelSpec& model, int rank, int group_ranks, c10::Device device)
    : model_(model), rank_(rank), group_ranks_(group_ranks) {
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    auto& kept = units_.emplace_back();
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto part =
          part_of(static_cast<UnitId>(u), static_cast<int>(f), rank);
      kept.flats.push_back(at::empty(
          {part.numel()},
          at::device(device).dtype(model.units[u].flats[f].unsharded_dtype())));
      bytes_ += static_cast<std::int64_t>(kept.flats.back().nbytes());
    }
  }
}

bool SecondaryShards::has(UnitId unit, std::uint64_t generation) const {
  return units_[static_cast<std::size_t>(unit)].generation == generation;
}

void SecondaryShards::keep(
    UnitId unit, std::uint64_t generation, const UnshardedUnit& unsharded) {
  auto& kept = units_[static_cast<std::size_t>(unit)];
  for (std::size_t f = 0; f < kept.flats.size(); ++f) {
    const auto part = part_of(unit, static_cast<int>(f), rank_);
    const auto from = unsharded.flats[f].narrow(0, part.begin, part.numel());
    if (!from.is_cpu()) {
      kept.flats[f].copy_(from);
    } else {
      copy_bytes(
          kept.flats[f].mutable_data_ptr(), from.const_data_ptr(),
          from.nbytes());
    }
  }
  kept.generation = generation;
}

const at::Tensor& SecondaryShards::own(UnitId unit, int flat) const {
  return units_[static_cast<std::size_t>(unit)]
      .flats[static_cast<std::size_t>(flat)];
}

plan::FlatLayout SecondaryShards::layout_of(UnitId unit, int flat) const {
  auto layout = model_.unit(unit).flats[static_cast<std::size_t>(flat)].layout;
  layout.cuts.clear();
  for (int member = 0; member < group_ranks_; ++member) {
    layout.cuts.push_back(part_of(unit, flat, member).begin);
  }
  layout.cuts.push_back(layout.numel);
  return layout;
}

plan::ElementRange SecondaryShards::part_of(
    UnitId unit, int flat, int peer) const {
  const auto& layout =
      model_.unit(unit).flats[static_cast<std::size_t>(flat)].layout;
  const int shards = layout.ranks() / group_ranks_;
  const int first = peer % group_ranks_ * shards;
  return {layout.shard(first).begin, layout.shard(first + shards - 1).end};
}

}  // namespace sherd::exchange
