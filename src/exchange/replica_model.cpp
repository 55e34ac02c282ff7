// SPDX-License-Identifier: Apache-2.0
#include "exchange/replica_model.h"

namespace sherd::exchange {
namespace {

// Sums of 16 fp32 elements fill a cache line.
constexpr std::int64_t kCutElements = 16;

plan::FlatLayout shard_layout(
    const plan::FlatLayout& of, int shard_index, int replicas) {
  const auto shard = of.shard(shard_index);
  plan::FlatLayout layout;
  layout.numel = shard.numel();
  std::int64_t end = 0;
  for (int p = 0; p < of.parameters(); ++p) {
    const auto slice = plan::parameter_slice(of, p, shard_index).in_shard;
    // Where nothing of it lies here, offsets still ascend.
    layout.offsets.push_back(slice.empty() ? end : slice.begin);
    layout.numels.push_back(slice.numel());
    end = slice.empty() ? end : slice.end;
  }
  for (int r = 0; r < replicas; ++r) {
    layout.cuts.push_back(
        layout.numel * r / replicas / kCutElements * kCutElements);
  }
  layout.cuts.push_back(layout.numel);
  return layout;
}

}  // namespace

ModelSpec replica_model(const ModelSpec& model, int shard_index, int replicas) {
  ModelSpec across = model;
  across.placement = Placement::kReplicate;
  across.gradients_only = true;
  for (auto& unit : across.units) {
    for (auto& flat : unit.flats) {
      const auto slot_dtype = flat.slot_dtype();
      flat.param_dtype.reset();
      flat.reduce_dtype.reset();
      if (slot_dtype != flat.dtype) {
        flat.reduce_dtype = slot_dtype;
      }
      flat.layout = shard_layout(flat.layout, shard_index, replicas);
    }
  }
  return across;
}

}  // namespace sherd::exchange
