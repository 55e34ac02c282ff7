// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_units.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "exchange/private_buffers.h"

namespace sherd::exchange {

SharedUnits::SharedUnits(
    const ModelSpec& model,
    const SharedLayout& layout,
    int rank,
    const std::shared_ptr<shm::HostSegment>& segment)
    : model_(model), layout_(layout), rank_(rank), segment_(segment) {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    auto& shards = shards_.emplace_back();
    auto& whole = whole_.emplace_back();
    for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
      const auto& flat = model_.units[u].flats[f];
      const auto own =
          owned(model_, static_cast<UnitId>(u), static_cast<int>(f), rank_);
      const auto options = at::TensorOptions().dtype(flat.dtype);
      ShardMemory memory;
      if (!model_.replicates()) {
        whole.push_back(base() + layout_.flats[u][f]);
      }
      if (!model_.own_shards) {
        whole.push_back(nullptr);
      } else if (model_.replicates() || flat.is_cast()) {
        memory.shard = at::zeros({own.numel()}, options);
      } else {
        memory.shard = at::from_blob(
            static_cast<std::byte*>(whole.back()) +
                own.begin *
                    static_cast<std::int64_t>(c10::elementSize(flat.dtype)),
            {own.numel()}, [segment](void*) {}, options);
      }
      if (model_.replicates() && model_.own_shards && flat.is_cast()) {
        private_casts_.push_back(
            at::empty({own.numel()}, options.dtype(flat.unsharded_dtype())));
        whole.push_back(private_casts_.back().mutable_data_ptr());
      } else if (model_.replicates() && model_.own_shards) {
        whole.push_back(memory.shard.mutable_data_ptr());
      }
      if (flat.trainable && model_.own_gradients) {
        add_gradient(static_cast<UnitId>(u), static_cast<int>(f), own, memory);
      }
      if (flat.trainable && model_.replicates() && !model_.own_gradients) {
        shown_bytes_ += own.numel() *
            static_cast<std::int64_t>(c10::elementSize(flat.gradient_dtype()));
      }
      shards.push_back(std::move(memory));
    }
  }
}

void SharedUnits::add_gradient(
    UnitId unit,
    int flat,
    const plan::ElementRange& own,
    ShardMemory& memory) const {
  if (model_.replicates()) {
    memory.gradient = gradient_of(rank_, unit, flat);
  } else if (model_.share_gradients) {
    memory.whole_gradient = gradient_of(rank_, unit, flat);
    memory.gradient = memory.whole_gradient.narrow(0, own.begin, own.numel());
  } else {
    const auto& spec = model_.unit(unit).flats[static_cast<std::size_t>(flat)];
    memory.gradient = untouched_zeros(own.numel(), spec.gradient_dtype());
  }
}

std::vector<at::Tensor> SharedUnits::shards(UnitId unit) const {
  std::vector<at::Tensor> shards;
  for (const auto& memory : shards_[static_cast<std::size_t>(unit)]) {
    shards.push_back(memory.shard);
  }
  return shards;
}

std::byte* SharedUnits::base() const {
  return segment_->at<std::byte>(0, segment_->bytes()).data();
}

at::Tensor SharedUnits::gradient_of(int rank, UnitId unit, int flat) const {
  const auto u = static_cast<std::size_t>(unit);
  const auto f = static_cast<std::size_t>(flat);
  const auto& spec = model_.units[u].flats[f];
  return at::from_blob(
      base() + layout_.gradient_regions[static_cast<std::size_t>(rank)] +
          layout_.gradients[u][f],
      {spec.layout.numel}, [segment = segment_](void*) {},
      spec.gradient_dtype());
}

void SharedUnits::cast_shards() const {
  for (std::size_t u = 0; u < model_.units.size(); ++u) {
    for (std::size_t f = 0; f < model_.units[u].flats.size(); ++f) {
      const auto& flat = model_.units[u].flats[f];
      if (flat.is_cast()) {
        const auto own =
            owned(model_, static_cast<UnitId>(u), static_cast<int>(f), rank_);
        at::from_blob(whole_[u][f], {flat.layout.numel}, flat.unsharded_dtype())
            .narrow(0, own.begin, own.numel())
            .copy_(shards_[u][f].shard);
      }
    }
  }
}

}  // namespace sherd::exchange
