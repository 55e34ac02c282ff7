// SPDX-License-Identifier: Apache-2.0
#include "exchange/hybrid_models.h"

namespace sherd::exchange {
namespace {

// Sums of 16 fp32 elements fill a cache line.
constexpr std::int64_t kCutElements = 16;

plan::FlatLayout layout_within(
    const plan::FlatLayout& of, const MeshPosition& place) {
  if (!place.both_axes) {
    return of;
  }
  plan::FlatLayout layout = of;
  layout.cuts.clear();
  for (int owner = 0; owner <= of.ranks(); owner += place.replicas) {
    layout.cuts.push_back(of.cuts[static_cast<std::size_t>(owner)]);
  }
  return layout;
}

plan::FlatLayout layout_across(
    const plan::FlatLayout& of, const MeshPosition& place) {
  const auto within = layout_within(of, place);
  const auto shard = within.shard(place.shard_index);
  plan::FlatLayout layout;
  layout.numel = shard.numel();
  std::int64_t end = 0;
  for (int p = 0; p < of.parameters(); ++p) {
    const auto slice =
        plan::parameter_slice(within, p, place.shard_index).in_shard;
    // Where nothing of it lies here, offsets still ascend.
    layout.offsets.push_back(slice.empty() ? end : slice.begin);
    layout.numels.push_back(slice.numel());
    end = slice.empty() ? end : slice.end;
  }
  for (int r = 0; r < place.replicas; ++r) {
    const auto owner = place.shard_index * place.replicas + r;
    layout.cuts.push_back(
        place.both_axes
            ? of.cuts[static_cast<std::size_t>(owner)] - shard.begin
            : layout.numel * r / place.replicas / kCutElements * kCutElements);
  }
  layout.cuts.push_back(layout.numel);
  return layout;
}

}  // namespace

ModelSpec model_within(const ModelSpec& model, const MeshPosition& place) {
  ModelSpec within = model;
  within.own_gradients = !place.both_axes;
  if (place.both_axes) {
    within.agreed = describe(model);  // Cuts that are none of these two models.
  }
  for (auto& unit : within.units) {
    for (auto& flat : unit.flats) {
      flat.layout = layout_within(flat.layout, place);
    }
  }
  return within;
}

ModelSpec model_across(const ModelSpec& model, const MeshPosition& place) {
  ModelSpec across = model;
  across.placement =
      place.both_axes ? ModelPlacement::kShard : ModelPlacement::kReplicate;
  across.own_shards = place.both_axes;
  across.own_gradients = place.both_axes;
  for (auto& unit : across.units) {
    for (auto& flat : unit.flats) {
      const auto slot_dtype = flat.slot_dtype();
      flat.param_dtype.reset();
      flat.reduce_dtype.reset();
      if (slot_dtype != flat.dtype) {
        flat.reduce_dtype = slot_dtype;
      }
      flat.layout = layout_across(flat.layout, place);
    }
  }
  return across;
}

}  // namespace sherd::exchange
