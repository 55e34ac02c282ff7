// SPDX-License-Identifier: Apache-2.0
#include "exchange/memories.h"

#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "base/check.h"

namespace sherd::exchange {
namespace {

at::Tensor tensor_at(void* memory, std::int64_t numel, c10::ScalarType dtype) {
  return at::from_blob(memory, {numel}, at::TensorOptions().dtype(dtype));
}

}  // namespace

Memories::Memories(const ModelSpec& model, int rank)
    : model_(model), rank_(rank), unit_pool_(model.unsharded_bytes_max) {
  shards_.resize(model.units.size());
  for (std::size_t u = 0; u < model.units.size(); ++u) {
    const auto unit = static_cast<UnitId>(u);
    for (std::size_t f = 0; f < model.units[u].flats.size(); ++f) {
      const auto& flat = model.units[u].flats[f];
      const auto numel = owned(unit, static_cast<int>(f)).numel();
      const auto options = at::TensorOptions().dtype(flat.dtype);
      shards_[u].push_back(
          {at::zeros({numel}, options),
           flat.trainable ? at::zeros({numel}, options) : at::Tensor()});
    }
  }
}

const UnitSpec& Memories::spec(UnitId unit) const {
  return model_.units.at(static_cast<std::size_t>(unit));
}

plan::ElementRange Memories::owned(UnitId unit, int flat) const {
  const auto& layout =
      spec(unit).flats.at(static_cast<std::size_t>(flat)).layout;
  return model_.placement == Placement::kReplicate
      ? plan::ElementRange{0, layout.numel}
      : layout.shard(rank_);
}

ShardMemory Memories::shard(UnitId unit, int flat) const {
  return shards_.at(static_cast<std::size_t>(unit))
      .at(static_cast<std::size_t>(flat));
}

Memories::Slot Memories::make_slot(
    SlotPool& pool, UnitId unit, bool trainable_only) {
  const auto& unit_spec = spec(unit);
  Slot slot;
  slot.memory = pool.borrow(unit_bytes(unit_spec));
  const auto offsets = flat_offsets(unit_spec);
  for (std::size_t f = 0; f < unit_spec.flats.size(); ++f) {
    const auto& flat = unit_spec.flats[f];
    slot.flats.push_back(
        trainable_only && !flat.trainable
            ? at::Tensor()
            : tensor_at(
                  static_cast<char*>(slot.memory) + offsets[f],
                  flat.layout.numel, flat.dtype));
  }
  return slot;
}

const std::vector<at::Tensor>& Memories::open_unit(UnitId unit) {
  SHERD_ASSERT(!units_.contains(unit));
  if (model_.placement == Placement::kReplicate) {
    Slot slot;
    for (const auto& memory : shards_[static_cast<std::size_t>(unit)]) {
      slot.flats.push_back(memory.shard);
    }
    return units_.emplace(unit, std::move(slot)).first->second.flats;
  }
  return units_.emplace(unit, make_slot(unit_pool_, unit, false))
      .first->second.flats;
}

const std::vector<at::Tensor>& Memories::unit(UnitId unit) const {
  return units_.at(unit).flats;
}

void Memories::drop_unit(UnitId unit) {
  const auto found = units_.find(unit);
  SHERD_ASSERT(found != units_.end());
  if (found->second.memory != nullptr) {
    unit_pool_.give_back(found->second.memory);
  }
  units_.erase(found);
}

const std::vector<at::Tensor>& Memories::open_gradients(UnitId unit) {
  auto found = gradients_.find(unit);
  if (found == gradients_.end()) {
    found =
        gradients_.emplace(unit, make_slot(gradient_pool_, unit, true)).first;
  }
  return found->second.flats;
}

Memories::Slot Memories::take_gradients(UnitId unit) {
  auto node = gradients_.extract(unit);
  SHERD_ASSERT(!node.empty(), "a unit is reduced without a gradient slot");
  return std::move(node.mapped());
}

Memories::Slot Memories::borrow_staging(std::int64_t bytes) {
  Slot slot;
  slot.memory = bytes > 0 ? gradient_pool_.borrow(bytes) : nullptr;
  return slot;
}

void Memories::release(Slot& slot) {
  slot.flats.clear();
  if (slot.memory != nullptr) {
    gradient_pool_.give_back(std::exchange(slot.memory, nullptr));
  }
}

void Memories::add_to(ExchangeCounters& counters) const {
  counters.slot_bytes = unit_pool_.allocated_bytes();
  counters.slot_bytes_peak = unit_pool_.allocated_bytes_peak();
  counters.gradient_bytes = gradient_pool_.allocated_bytes();
  counters.gradient_bytes_peak = gradient_pool_.allocated_bytes_peak();
}

}  // namespace sherd::exchange
