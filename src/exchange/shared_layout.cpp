// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_layout.h"

#include <algorithm>

#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

using plan::round_up;

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kSlotAlignment = 128;
// Slots of the largest unit that a region is expected to hold at once.
constexpr std::int64_t kSlotsTouched = 4;

}  // namespace

std::vector<std::int64_t> slot_offsets(const UnitSpec& unit) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& flat : unit.flats) {
    const auto bytes = flat.trainable ? flat.layout.numel *
            static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype()))
                                      : 0;
    offsets.push_back(offsets.back() + round_up(bytes, kSlotAlignment));
  }
  return offsets;
}

// In a backward each unit takes a slot, and another one for late gradients;
// between backwards none is taken, and a region shows one unit's shards in full
// precision (summon).
SharedLayout plan_shared_layout(
    const ModelSpec& model, int ranks, std::int64_t reserved_bytes) {
  SharedLayout layout;
  std::int64_t at = round_up(reserved_bytes, kPage);
  const bool sharded = model.placement == Placement::kShard;
  std::int64_t gradients = 0;  // Of one rank.
  std::int64_t slots = 0;
  std::int64_t largest = 0;
  std::int64_t shown = 0;
  for (const auto& unit : model.units) {
    auto& flats = layout.flats.emplace_back();
    for (std::size_t f = 0; sharded && f < unit.flats.size(); ++f) {
      flats.push_back(at);
      at = round_up(at + flat_bytes(unit.flats[f]), kPage);
    }
    if (!sharded) {
      auto& offsets = layout.gradients.emplace_back(
          flat_offsets(unit, &FlatSpec::shard_dtype));
      for (auto& offset : offsets) {
        offset += gradients;
      }
      gradients = offsets.back();
    }
    const auto slot = std::max(slot_offsets(unit).back(), kSlotAlignment);
    slots += 2 * slot;
    largest = std::max(largest, slot);
    if (sharded && is_cast(unit)) {
      shown =
          std::max(shown, flat_offsets(unit, &FlatSpec::shard_dtype).back());
    }
  }
  layout.slot_region_bytes = round_up(std::max(slots, shown), kPage);
  for (int rank = 0; !sharded && rank < ranks; ++rank) {
    layout.gradient_regions.push_back(at);
    at += round_up(gradients, kPage);
  }
  layout.touched_bytes =
      at + ranks * std::min(layout.slot_region_bytes, kSlotsTouched * largest);
  for (int rank = 0; rank < ranks; ++rank) {
    layout.slot_regions.push_back(at);
    at += layout.slot_region_bytes;
  }
  layout.bytes = at;
  return layout;
}

std::optional<std::int64_t> RegionAllocator::take(std::int64_t bytes) {
  const auto wanted = std::max(round_up(bytes, kSlotAlignment), kSlotAlignment);
  std::int64_t begin = 0;
  for (const auto& [taken_begin, taken_end] : taken_) {
    if (taken_begin - begin >= wanted) {
      break;
    }
    begin = taken_end;
  }
  if (bytes_ - begin < wanted) {
    return std::nullopt;
  }
  taken_.emplace(begin, begin + wanted);
  taken_bytes_ += wanted;
  taken_bytes_peak_ = std::max(taken_bytes_peak_, taken_bytes_);
  return begin;
}

void RegionAllocator::give_back(std::int64_t begin) {
  const auto found = taken_.find(begin);
  SHERD_ASSERT(found != taken_.end());
  taken_bytes_ -= found->second - found->first;
  taken_.erase(found);
}

}  // namespace sherd::exchange
