// SPDX-License-Identifier: Apache-2.0
//
// Support for tests of schedules: steps to plan, random and by formula; a check of every promise
// that a schedule makes; and the least traffic by brute force. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "plan/random_testing.h"
#include "plan/unit_schedule.h"

namespace sherd::plan {

using Visits = std::vector<std::vector<UnitId>>;

// Forward over units 0, ..., units - 1, then backward, `micro_batches` times. Equal neighbouring
// visits are merged.
Visits chain_visits(int units, int micro_batches);

// The same with checkpoint segments: backward runs each segment forward again.
Visits segment_visits(int units, int segment, int micro_batches);

// No unit is carried, and the budget is the same at each visit.
ScheduleInput schedule_input(
    std::vector<std::int64_t> unit_bytes,
    Visits visits,
    std::int64_t budget_bytes,
    int ahead_visits = 0);

struct RandomSteps {
  bool equal_units = false;
  bool carried = false;
  int units_max = 5;
  int visits_max = 12;
  int ahead_visits_max = 0;
};

// Chains, segments, micro-batches, tied units and arbitrary orders; visits with several units;
// budgets from the floor up, constant or by visit.
ScheduleInput random_step(TestRandom& random, const RandomSteps& options);

// The least bytes gathered per step in a series of steps, over every way to keep and drop units at
// every visit. For up to 8 units.
std::int64_t least_gathered_bytes(const ScheduleInput& input);

// The first broken promise; empty if there is none.
std::string broken_promise(
    const ScheduleInput& input, const UnitSchedule& schedule);

}  // namespace sherd::plan
