// SPDX-License-Identifier: Apache-2.0
#include "exchange/host_layout.h"

#include <algorithm>

#include "exchange/shared_layout.h"
#include "exchange/shared_memory_reductions.h"
#include "plan/arithmetic.h"

namespace sherd::exchange {
namespace {

using plan::round_up;

constexpr std::int64_t kLine = static_cast<std::int64_t>(shm::kCacheLine);

}  // namespace

// Addresses cost nothing. A unit may be whole for several ranks in buffers of
// their own, where ranks gather different units, and holes of other sizes may
// lie between: hence one buffer for each rank and unit, and one more.
HostLayout plan_host_layout(const ModelSpec& model, int local_ranks) {
  HostLayout layout;
  std::int64_t at = 0;
  const auto reserve = [&](std::int64_t bytes, std::int64_t alignment) {
    const auto begin = round_up(at, alignment);
    at = begin + bytes;
    return begin;
  };
  const auto units = static_cast<std::int64_t>(model.units.size());
  layout.buffer_record = reserve(sizeof(HostLayout::GatherBufferRecord), kLine);
  layout.states = reserve(
      local_ranks *
          static_cast<std::int64_t>(sizeof(HostLayout::GatherProgress)),
      kLine);
  layout.slots = reserve(
      local_ranks * units * static_cast<std::int64_t>(sizeof(SharedSlotState)),
      kLine);
  layout.dropped = reserve(
      local_ranks * units * static_cast<std::int64_t>(sizeof(std::uint64_t)),
      kLine);
  std::int64_t whole = 0;
  std::int64_t bytes = 0;
  std::int64_t slots = 0;
  std::int64_t largest_slot = 0;
  for (const auto& unit : model.units) {
    const auto full = flat_offsets(unit, &FlatSpec::shard_dtype).back();
    whole += unit_bytes(unit);
    bytes += round_up(std::max({unit_bytes(unit), full, kLine}), kPage);
    const auto slot = std::max(slot_bytes(unit), kLine);
    slots += 2 * slot;  // One more for late gradients.
    if (!starts_frozen(unit)) {
      largest_slot = std::max(largest_slot, slot);
    }
  }
  layout.unit_region_bytes = (local_ranks + 1) * bytes;
  layout.units = reserve(layout.unit_region_bytes, kPage);
  layout.slot_region_bytes = round_up(slots, kPage);
  layout.heap_bytes = local_ranks > 1 ? heap_bytes(model) : 0;
  for (int rank = 0; rank < local_ranks; ++rank) {
    layout.slot_regions.push_back(
        reserve(layout.slot_region_bytes + layout.heap_bytes, kPage));
  }
  layout.bytes = at;
  const auto budget = model.unsharded_bytes_max;
  layout.touched_bytes = layout.units +
      (budget > 0 ? std::min(budget, whole) : whole) +
      local_ranks *
          std::min(layout.slot_region_bytes, kSlotsTouched * largest_slot);
  return layout;
}

}  // namespace sherd::exchange
