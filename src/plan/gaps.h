// SPDX-License-Identifier: Apache-2.0
//
// A gap is the stretch of visits between two uses of a unit. Bridging a gap, by keeping the unit
// whole, saves one gather, but its bytes count at each visit in between. To plan a step is to
// choose which gaps to bridge. Thread rule: pure functions and values.
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

}  // namespace sherd::plan
