// SPDX-License-Identifier: Apache-2.0
#include "exchange/shared_layout.h"

#include <algorithm>

#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

using plan::round_up;

constexpr std::int64_t kSlotAlignment = 128;
// Each is a mapping of its own to the kernel, which allows a process 65,530.
constexpr std::size_t kReadOnlyRangesMax = 4096;

// As flat_offsets(); a frozen flat takes no room.
std::vector<std::int64_t> trainable_offsets(
    const UnitSpec& unit, FlatDtype dtype) {
  std::vector<std::int64_t> offsets = {0};
  for (const auto& flat : unit.flats) {
    const auto bytes = flat.trainable ? flat.layout.numel *
            static_cast<std::int64_t>(c10::elementSize((flat.*dtype)()))
                                      : 0;
    offsets.push_back(offsets.back() + round_up(bytes, kSlotAlignment));
  }
  return offsets;
}

}  // namespace

std::vector<std::int64_t> slot_offsets(const UnitSpec& unit) {
  return trainable_offsets(unit, &FlatSpec::slot_dtype);
}

std::int64_t places_offset(const UnitSpec& unit) {
  const auto marks = static_cast<std::int64_t>(trainable_parameters(unit));
  return slot_offsets(unit).back() + round_up(marks, sizeof(std::int64_t));
}

std::int64_t slot_bytes(const UnitSpec& unit) {
  const auto places = static_cast<std::int64_t>(
      trainable_parameters(unit) * sizeof(std::int64_t));
  return round_up(places_offset(unit) + places, kSlotAlignment);
}

std::int64_t large_gradient_bytes(const FlatSpec& flat, std::size_t parameter) {
  return flat.trainable && may_bypass_slot(flat, static_cast<int>(parameter))
      ? flat.layout.numels[parameter] *
          static_cast<std::int64_t>(c10::elementSize(flat.slot_dtype()))
      : 0;
}

std::vector<std::int64_t> large_gradients(const UnitSpec& unit) {
  std::vector<std::int64_t> sizes;
  for (const auto& flat : unit.flats) {
    for (std::size_t p = 0; p < flat.layout.numels.size(); ++p) {
      if (const auto bytes = large_gradient_bytes(flat, p); bytes > 0) {
        sizes.push_back(bytes);
      }
    }
  }
  return sizes;
}

std::int64_t heap_bytes(const ModelSpec& model) {
  std::int64_t all = 0;
  for (const auto& unit : model.units) {
    for (const auto bytes : large_gradients(unit)) {
      all += round_up(bytes, kSlotAlignment);
    }
  }
  return round_up(all, kPage);
}

// In a backward each unit takes a slot, and another one for late gradients;
// between backwards none is taken, and a region shows one unit's shards in full
// precision (summon).
SharedLayout plan_shared_layout(
    const ModelSpec& model, int ranks, std::int64_t reserved_bytes) {
  SharedLayout layout;
  std::int64_t at = round_up(reserved_bytes, kPage);
  const bool sharded = !model.replicates();
  const bool gradients_inside = !sharded || model.share_gradients;
  std::int64_t gradients = 0;  // Of one region.
  std::int64_t frozen = 0;  // The part of those that is not touched at first.
  std::int64_t slots = 0;
  std::int64_t largest = 0;
  std::int64_t shown = 0;
  for (const auto& unit : model.units) {
    auto& flats = layout.flats.emplace_back();
    for (std::size_t f = 0; sharded && f < unit.flats.size(); ++f) {
      flats.push_back(at);
      at = round_up(at + flat_bytes(unit.flats[f]), kPage);
    }
    if (gradients_inside) {
      auto& offsets = layout.gradients.emplace_back(
          trainable_offsets(unit, &FlatSpec::gradient_dtype));
      for (auto& offset : offsets) {
        offset += gradients;
      }
      frozen += starts_frozen(unit) ? offsets.back() - gradients : 0;
      gradients = offsets.back();
    }
    const auto slot = std::max(slot_bytes(unit), kSlotAlignment);
    slots += 2 * slot;
    if (!starts_frozen(unit)) {
      largest = std::max(largest, slot);
    }
    if (sharded && is_cast(unit)) {
      shown =
          std::max(shown, flat_offsets(unit, &FlatSpec::shard_dtype).back());
    }
  }
  layout.slot_region_bytes = round_up(std::max(slots, shown), kPage);
  layout.heap_bytes = ranks > 1 ? heap_bytes(model) : 0;
  layout.gradient_region_bytes = round_up(gradients, kPage);
  const bool each_has_one = !sharded && model.own_gradients;
  for (int rank = 0; gradients_inside && rank < ranks; ++rank) {
    layout.gradient_regions.push_back(at);
    at += each_has_one || rank + 1 == ranks ? layout.gradient_region_bytes : 0;
  }
  const auto regions = !gradients_inside ? 0 : each_has_one ? ranks : 1;
  layout.touched_bytes = at - regions * frozen +
      ranks * std::min(layout.slot_region_bytes, kSlotsTouched * largest);
  for (int rank = 0; rank < ranks; ++rank) {
    layout.slot_regions.push_back(at);
    at += layout.slot_region_bytes + layout.heap_bytes;
  }
  layout.bytes = at;
  return layout;
}

std::vector<ByteRange> read_only_ranges(
    const ModelSpec& model, const SharedLayout& layout, int rank) {
  std::vector<ByteRange> ranges;
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    begin = round_up(begin, kPage);
    end = end / kPage * kPage;
    if (begin >= end) {
      return;
    }
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = end;
    } else if (ranges.size() < kReadOnlyRangesMax) {
      ranges.push_back({begin, end});
    }
  };
  for (std::size_t u = 0; u < layout.flats.size(); ++u) {
    for (std::size_t f = 0; f < layout.flats[u].size(); ++f) {
      const auto& flat = model.units[u].flats[f];
      const auto begin = layout.flats[u][f];
      const auto own = flat.layout.shard(rank);
      const auto element =
          static_cast<std::int64_t>(c10::elementSize(flat.unsharded_dtype()));
      const auto end = round_up(begin + flat_bytes(flat), kPage);
      add(begin, own.empty() ? end : begin + own.begin * element);
      add(own.empty() ? end : begin + own.end * element, end);
    }
  }
  const auto add_others = [&](const std::vector<std::int64_t>& regions,
                              std::int64_t bytes) {
    for (std::size_t r = 0; r < regions.size(); ++r) {
      if (regions[r] != regions[static_cast<std::size_t>(rank)]) {
        add(regions[r], regions[r] + bytes);
      }
    }
  };
  add_others(layout.gradient_regions, layout.gradient_region_bytes);
  add_others(layout.slot_regions, layout.slot_region_bytes + layout.heap_bytes);
  return ranges;
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
