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

// Forward over units 0, ..., units - 1, then backward, `micro_batches` times.
// Neighbouring equal visits are one.
Visits chain_visits(int units, int micro_batches);

// The same with checkpoint segments: backward runs each segment forward again.
Visits segment_visits(int units, int segment, int micro_batches);

// No unit carried, the same budget at each visit.
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

// Chains, segments, micro-batches, tied units and plain disorder; visits with
// several units; budgets from the floor up, of one height or by visit.
ScheduleInput random_step(TestRandom& random, const RandomSteps& options);

// Least bytes gathered per step in a row of steps, over every way to keep and
// drop units at every visit. For up to 8 units.
std::int64_t least_gathered_bytes(const ScheduleInput& input);

// Empty, or the first promise that is broken.
std::string broken_promise(
    const ScheduleInput& input, const UnitSchedule& schedule);

}  // namespace sherd::plan
