// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of one host share when the shard axis spans several: places
// for whole units, of which few are in use at a time, gradient slots, and the
// counters that say what is ready. Pure; every rank of a host plans the same.
#pragma once

#include <cstdint>
#include <vector>
#include "shm/counter.h"
#include "exchange/exchange.h"

namespace sherd::exchange {

// One a host. Written by its first rank; no gather is agreed on before all have
// read what the one before it brought here.
struct GatherBufferRecord {
  shm::CounterCell placed;  // Gathers that have a place.
  std::int64_t begin;             // Of the last one's, in the unit region.
};

// One a rank. Pairs: its part of the unit is written before, and read after.
struct GatherProgress {
  shm::CounterCell arrived;  // Gathers to which it has added its part.
  // Of the board: allocated for whole units, save what only others read.
  std::int64_t slot_bytes;
};

struct HostLayout {
  // From the start of the segment, in bytes.
  std::int64_t board = 0;    // GatherBufferRecord.
  std::int64_t states = 0;   // GatherProgress by local rank.
  std::int64_t slots = 0;    // SharedSlotState by local rank, by unit.
  std::int64_t dropped = 0;  // std::uint64_t by local rank, by unit.
  std::int64_t units = 0;    // Places for whole units.
  std::int64_t unit_region_bytes = 0;
  std::vector<std::int64_t> slot_regions;  // Gradient slots, by local rank.
  std::int64_t slot_region_bytes = 0;
  std::int64_t bytes = 0;
  // Of these, what training touches where ranks do the same: units up to the
  // budget, of each region a few slots.
  std::int64_t touched_bytes = 0;
};

HostLayout plan_host_layout(const ModelSpec& model, int local_ranks);

}  // namespace sherd::exchange
