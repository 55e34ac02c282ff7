// SPDX-License-Identifier: Apache-2.0
#include "exchange/hybrid_models.h"

namespace sherd::exchange {
namespace {

// Sums of 16 fp32 elements fill a cache line.
constexpr std::int64_t kCutElements = 16;

plan::FlatLayout layout_within(
    const plan::FlatLayout& of, const MeshPosition& position) {
  if (!position.both_axes) {
    return of;
  }
  plan::FlatLayout layout = of;
  layout.cuts.clear();
  for (int owner = 0; owner <= of.ranks(); owner += position.replicas) {
    layout.cuts.push_back(of.cuts[static_cast<std::size_t>(owner)]);
  }
  return layout;
}

plan::FlatLayout layout_across(
    const plan::FlatLayout& of, const MeshPosition& position) {
  const auto within = layout_within(of, position);
  const auto shard = within.shard(position.shard_index);
  plan::FlatLayout layout;
  layout.numel = shard.numel();
  std::int64_t end = 0;
  for (int p = 0; p < of.parameters(); ++p) {
    const auto slice =
        plan::parameter_slice(within, p, position.shard_index).in_shard;
    // Where nothing of it lies here, offsets still ascend.
    layout.offsets.push_back(slice.empty() ? end : slice.begin);
    layout.numels.push_back(slice.numel());
    end = slice.empty() ? end : slice.end;
  }
  for (int r = 0; r < position.replicas; ++r) {
    const auto owner = position.shard_index * position.replicas + r;
    layout.cuts.push_back(
        position.both_axes
            ? of.cuts[static_cast<std::size_t>(owner)] - shard.begin
            : layout.numel * r / position.replicas / kCutElements *
                kCutElements);
  }
  layout.cuts.push_back(layout.numel);
  return layout;
}

}  // namespace

ModelSpec model_within(const ModelSpec& model, const MeshPosition& position) {
  ModelSpec within = model;
  within.own_gradients = !position.both_axes;
  // Sums go on across, and on both axes shards come from there.
  within.host_reads_sums = false;
  within.host_writes_shards = !position.both_axes;
  if (position.both_axes) {
    within.agreed = describe(model);  // Cuts that are none of these two models.
  }
  for (auto& unit : within.units) {
    for (auto& flat : unit.flats) {
      flat.layout = layout_within(flat.layout, position);
    }
  }
  return within;
}

ModelSpec model_across(const ModelSpec& model, const MeshPosition& position) {
  ModelSpec across = model;
  across.placement =
      position.both_axes ? ModelPlacement::kShard : ModelPlacement::kReplicate;
  across.own_shards = position.both_axes;
  across.own_gradients = position.both_axes;
  for (auto& unit : across.units) {
    for (auto& flat : unit.flats) {
      const auto slot_dtype = flat.slot_dtype();
      flat.param_dtype.reset();
      flat.reduce_dtype.reset();
      flat.coded = false;
      if (slot_dtype != flat.dtype) {
        flat.reduce_dtype = slot_dtype;
      }
      flat.layout = layout_across(flat.layout, position);
    }
  }
  return across;
}

}  // namespace sherd::exchange
