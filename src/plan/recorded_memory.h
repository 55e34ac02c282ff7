// SPDX-License-Identifier: Apache-2.0
//
// Computes the figures for a memory plan from what was recorded of a step in which every region was
// recomputed. Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>
#include "plan/memory_plan.h"

namespace sherd::plan {

enum class MemoryMoment {
  kForwardBegins,  // The forward of a region begins.
  kForwardEnds,
  kAgainBegins,  // The recomputation of a region begins, in backward.
  kAgainEnds,
  kStepEnds,
};

struct MemoryEvent {
  MemoryMoment moment = MemoryMoment::kStepEnds;
  int region = -1;              // Its number; not for kStepEnds.
  std::int64_t ns = 0;          // Since the step began.
  std::int64_t gather_ns = 0;   // The part of `ns` that waited for units.
  std::int64_t bytes = 0;       // In use now, beyond what is there in any case.
  std::int64_t peak_bytes = 0;  // The most in use since the event before.
};

struct RecordedMemory {
  // The numbers of the regions in the order of forward; `step.units` has the same order.
  std::vector<int> regions;
  // Without the units that are gathered.
  StepMemory step;
};

// `always_bytes`: what the process uses beside the bytes of the events. Events are in the order of
// time; those of a region whose forward came before them are left out. A region that waits for
// several backwards at a time counts that many times.
RecordedMemory recorded_memory(
    std::span<const MemoryEvent> events, std::int64_t always_bytes);

// `memory` with the times of `times`, which another step recorded, and whose memory is not used.
// Returns nothing if other regions ran in that step, or in another order.
std::optional<RecordedMemory> with_times(
    RecordedMemory memory, const RecordedMemory& times);

// Adds units that are gathered before the others of `step`, and subtracts their time, which is that
// of all gathers but the first, from that of the step. The room for whole units is held throughout
// a step; being before all regions, it counts at every moment of the step.
void add_gathered_units(std::span<const UnitMemory> units, StepMemory& step);

}  // namespace sherd::plan
