// SPDX-License-Identifier: Apache-2.0
//
// Placement gives each stay of a unit, from its gather until it is resharded, a
// place in one arena of fixed size, so that slots never move and nothing is
// allocated while a step runs. Units of different size leave holes; they are
// counted, and a schedule can be made that fits its budget with them.
// Thread rule: pure functions and values; equal inputs have equal answers on
// every machine.
#pragma once

#include <cstdint>
#include <vector>
#include "base/status.h"
#include "plan/unit_schedule.h"

namespace sherd::plan {

// Every place starts on it: whole cache lines, and what transports and kernels
// want.
inline constexpr std::int64_t kPlaceAlignment = 128;

struct Placement {
  // Bytes from the start of the arena; multiples of kPlaceAlignment.
  // Of each unit of `initial`, and of each of `before[visit].unshard`, in their
  // order. A unit that is kept over the step boundary keeps its place.
  std::vector<std::int64_t> initial;
  std::vector<std::vector<std::int64_t>> unshard;
  // A multiple of kPlaceAlignment.
  std::int64_t arena_bytes = 0;
  // What the arena is larger than resident_bytes_peak, by holes and alignment.
  std::int64_t lost_bytes = 0;
};

// A place is free again when its unit is in `reshard`: what the same actions
// unshard may take it. REQUIRES: `schedule` was made for `input`.
Placement place_units(const ScheduleInput& input, const UnitSchedule& schedule);

struct PlacedSchedule {
  // As given, with the budget that the schedule was made for.
  ScheduleInput input;
  // `lower_bound_bytes` of its report is that of the budget given.
  UnitSchedule schedule;
  Placement placement;
};

// A schedule whose arena is at most the largest budget of a visit. When that is
// not so at first, it is planned with less, a fixed number of times; of the tries
// that fit, the one that gathers least. kInvalidArgument as from
// make_unit_schedule(), and, naming the budget that would do, when none fits, not
// even with the least that the visits need. Throws as make_unit_schedule() does.
Result<PlacedSchedule> make_placed_schedule(const ScheduleInput& input);

}  // namespace sherd::plan
