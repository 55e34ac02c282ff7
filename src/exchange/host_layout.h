// SPDX-License-Identifier: Apache-2.0
//
// The layout of the segment that the ranks of one host share if the shard axis spans several hosts:
// buffers for whole units, of which few are in use at a time, gradient slots, and the counters that
// say what is ready. Thread rule: pure functions; every rank of a host plans the same.
#pragma once

#include <cstdint>
#include <vector>
#include "exchange/exchange.h"
#include "shm/counter.h"

namespace sherd::exchange {

struct HostLayout {
  // One for each host, written by its first rank. No gather is agreed on before all ranks have read
  // where the one before it lies.
  struct GatherBufferRecord {
    shm::CounterCell placed;  // The number of gathers that have a buffer.
    std::int64_t begin;       // Where the last one begins in the unit region.
  };

  // One for each rank. Pairs: its part of the unit is written before the post, and read after the
  // post was seen.
  struct GatherProgress {
    shm::CounterCell arrived;  // Gathers to which it has added its part.
    // Bytes allocated for whole units, except those that only other ranks read.
    std::int64_t slot_bytes;
  };

  // From the start of the segment, in bytes.
  std::int64_t buffer_record = 0;  // GatherBufferRecord.
  std::int64_t states = 0;         // GatherProgress by local rank.
  std::int64_t slots = 0;          // SharedSlotState by local rank, by unit.
  std::int64_t dropped = 0;        // std::uint64_t by local rank, by unit.
  std::int64_t units = 0;          // Buffers for whole units.
  std::int64_t unit_region_bytes = 0;
  // By local rank: gradient slots, and behind them the gradient heap.
  std::vector<std::int64_t> slot_regions;
  std::int64_t slot_region_bytes = 0;
  std::int64_t heap_bytes = 0;
  std::int64_t bytes = 0;
  // The part that training touches if all ranks do the same: units up to the budget, and a few
  // slots in each region.
  std::int64_t touched_bytes = 0;
};

HostLayout plan_host_layout(const ModelSpec& model, int local_ranks);

}  // namespace sherd::exchange
