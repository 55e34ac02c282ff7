// SPDX-License-Identifier: Apache-2.0
//
// A gap is the stretch of visits between two uses of a unit. To plan a step is to choose which gaps
// to bridge by keeping the unit whole (docs/design/plan.md). Thread rule: pure functions and
// values; equal problems have equal answers on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>
#include "plan/unit_id.h"
#include "plan/unit_schedule.h"

namespace sherd::plan {

using UnitSets = std::vector<std::vector<UnitId>>;  // By visit, ascending.

// The bytes of the given units when whole; `sizes` is by unit.
std::int64_t bytes_of(
    std::span<const UnitId> units, std::span<const std::int64_t> sizes);

struct Gap {
  UnitId unit = 0;
  std::int64_t bytes = 0;
  // The visits in between are begin, ..., end - 1. In a gap over the step boundary counting goes
  // on: visit number `visits` is visit 0 of the next step. There begin == end if no visit lies
  // between.
  int begin = 0;
  int end = 0;

  friend bool operator==(const Gap&, const Gap&) = default;
};

struct GapProblem {
  // By visit: the budget minus the units that are present in any case.
  std::vector<std::int64_t> room;
  // Sorted by begin, then by unit.
  std::vector<Gap> gaps;

  int visits() const { return static_cast<int>(room.size()); }
};

// The units present at each visit in any case: its own and, as far as there is room, those of the
// next `ahead_visits` visits, so that they can be gathered before their use. Nearer uses go first.
// A unit that is present ahead of its use stays until then. REQUIRES: each visit fits its budget.
UnitSets present_units(const ScheduleInput& input);

// The gaps between visits at which a unit is present, and the room to bridge them. REQUIRES: the
// units present fit the budget of each visit.
GapProblem gap_problem(const UnitSets& present, const ScheduleInput& input);

// The next two return, by gap, whether it is bridged. At each visit the bytes of the bridged gaps
// fit the room.

// By Belady's rule, farthest next use: bridges every gap and, where there is no room, gives up the
// gap that ends last. Optimal if units are equal and no gap crosses the step boundary.
std::vector<bool> keep_by_farthest_next_use(const GapProblem& problem);

// The same, improved by local search if units differ in size or are carried over the step boundary;
// bridges at least as many bytes. The search ends after a fixed number of exchanges, never after a
// time, so that every rank ends with the same choice.
std::vector<bool> keep_gaps(const GapProblem& problem);

// By farthest next use of parts of gaps: no choice leaves fewer bytes unbridged, not even one that
// bridges parts of gaps. If no gap crosses the step boundary, some choice of parts reaches this
// bound.
std::int64_t missed_bytes_lower_bound(const GapProblem& problem);

}  // namespace sherd::plan
