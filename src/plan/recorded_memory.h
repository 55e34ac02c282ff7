// SPDX-License-Identifier: Apache-2.0
//
// From what was seen of a step in which every region was recomputed to the figures that a memory
// plan is made of. Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>
#include "plan/memory_plan.h"

namespace sherd::plan {

enum class MemoryMoment {
  kForwardBegins,  // Of a region.
  kForwardEnds,
  kAgainBegins,  // Of its recomputation in backward.
  kAgainEnds,
  kStepEnds,
};

struct MemoryEvent {
  MemoryMoment moment = MemoryMoment::kStepEnds;
  int region = -1;              // Its number; not for kStepEnds.
  std::int64_t ns = 0;          // Since the step began.
  std::int64_t gather_ns = 0;   // Of these: waiting for units.
  std::int64_t bytes = 0;       // In use now, beyond what is there in any case.
  std::int64_t peak_bytes = 0;  // In use at most since the event before.
};

struct RecordedMemory {
  // The numbers of the regions in the order of forward; `step.units` has the same order.
  std::vector<int> regions;
  // Without units that are gathered.
  StepMemory step;
};

// `always_bytes`: what the process has beside the bytes of the events. Events come in the order of
// time; those of a region whose forward came before them are left out. A region that waits for more
// than one backward at a time counts as often.
RecordedMemory recorded_memory(
    std::span<const MemoryEvent> events, std::int64_t always_bytes);

// `memory` with the times of `times`, seen in another step, whose memory does not count. Nothing where
// other regions ran, or in another order.
std::optional<RecordedMemory> with_times(
    RecordedMemory memory, const RecordedMemory& times);

struct GatheredUnit {
  std::int64_t bytes = 0;
  std::int64_t again_ns = 0;  // In a step, for all gathers but the first.
};

// Adds units before the others of `step`, and takes their time out of that of the step. Room for whole
// units is held throughout a step: before all regions it counts at each moment that they have.
void add_gathered_units(std::span<const GatheredUnit> units, StepMemory& step);

}  // namespace sherd::plan
