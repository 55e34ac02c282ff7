// SPDX-License-Identifier: Apache-2.0
//
// Where everything lies in the memory that the ranks of one host share: each unit's flats once,
// whole, and for each rank a region for its gradient slots. Thread rule: pure functions; every rank
// plans the same.
#pragma once

#include <unistd.h>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>
#include "exchange/exchange.h"

namespace sherd::exchange {

// The kernel's page in bytes: the unit in which memory is mapped, shared and given back.
inline const std::int64_t kPage = ::sysconf(_SC_PAGESIZE);
// Slots of the largest unit that a region is expected to hold at once.
inline constexpr std::int64_t kSlotsTouched = 4;

struct SharedLayout {
  // All offsets are from the start of the segment, in bytes.
  std::vector<std::vector<std::int64_t>> flats;  // By unit, flat; if sharded.
  // By rank: gradient slots, and behind them, on a page of its own, the gradient heap.
  std::vector<std::int64_t> slot_regions;
  std::int64_t slot_region_bytes = 0;
  std::int64_t heap_bytes = 0;
  // Gradients of replicated units: a region for each rank, or the same region for all if ranks own
  // no gradients. Gradients of sharded units, if they are shared: the same region for all.
  // `gradients` says where that of a flat begins in the region.
  std::vector<std::int64_t> gradient_regions;  // By rank.
  std::int64_t gradient_region_bytes = 0;
  std::vector<std::vector<std::int64_t>> gradients;  // By unit, flat.
  std::int64_t bytes = 0;                            // The whole segment.
  // The part that training touches: a few slots in each region.
  std::int64_t touched_bytes = 0;
};

// The first `reserved_bytes` are left for other uses. Each rank's region and each flat starts on a
// page, so that no two of them share a page.
SharedLayout plan_shared_layout(
    const ModelSpec& model, int ranks, std::int64_t reserved_bytes);

// A range of bytes of the segment.
struct ByteRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
// What a rank never writes: pages of whole units without a byte of its own slices, and the slots
// and gradients of other ranks. The ranges consist of whole pages, ascending, and are never
// adjacent; if there are very many, some are left out.
std::vector<ByteRange> read_only_ranges(
    const ModelSpec& model, const SharedLayout& layout, int rank);

// Where each flat begins in a gradient slot of the unit; the last entry is where the slot ends.
// Frozen flats take no room.
std::vector<std::int64_t> slot_offsets(const UnitSpec& unit);
// What follows a slot: for each trainable parameter a byte that says whether the rank has a gradient
// of it, and then where in the rank's region that lies, if it does not lie in the slot.
inline constexpr std::int64_t kInSlot = -1;
std::int64_t places_offset(const UnitSpec& unit);
// The size of a slot with what follows it.
std::int64_t slot_bytes(const UnitSpec& unit);
// The bytes of a gradient that may lie in a gradient heap; 0 for others.
std::int64_t large_gradient_bytes(const FlatSpec& flat, std::size_t parameter);
// Those of a unit that are not 0.
std::vector<std::int64_t> large_gradients(const UnitSpec& unit);
// What all large gradients take in a heap.
std::int64_t heap_bytes(const ModelSpec& model);

// Allocates ranges of a region, always the lowest that fits, so that memory that is returned soon
// is used again and few pages are ever touched. Thread rule: one thread.
class RegionAllocator {
 public:
  explicit RegionAllocator(std::int64_t bytes) : bytes_(bytes) {}

  // Returns where the range begins, at a multiple of 128 bytes, or nothing if no gap is large
  // enough.
  std::optional<std::int64_t> take(std::int64_t bytes);
  // REQUIRES: taken and not yet given back.
  void give_back(std::int64_t begin);

  std::int64_t taken_bytes() const { return taken_bytes_; }
  std::int64_t taken_bytes_peak() const { return taken_bytes_peak_; }

 private:
  const std::int64_t bytes_;
  std::map<std::int64_t, std::int64_t> taken_;  // From begin to end.
  std::int64_t taken_bytes_ = 0;
  std::int64_t taken_bytes_peak_ = 0;
};

}  // namespace sherd::exchange
