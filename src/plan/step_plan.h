// SPDX-License-Identifier: Apache-2.0
//
// A recorded step and the plan made from it: which visits happened, and the unit schedule for them.
// Thread rule: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
#include "plan/unit_id.h"
#include "plan/unit_schedule.h"

namespace sherd::plan {

// The visits from one publish to the next or, without a backward, until the first visit comes
// again.
struct StepTrace {
  struct Visit {
    std::vector<UnitId> units;  // Ascending.
    bool in_backward = false;

    bool operator==(const Visit&) const = default;
  };

  bool training = true;  // The first visit recorded gradients.
  std::vector<Visit> visits;
  // For each backward, the number of visits before its end.
  std::vector<std::size_t> backward_ends;

  bool operator==(const StepTrace&) const = default;
};

// Equal for equal records.
std::uint64_t digest(const StepTrace& record);

struct StepPlan {
  StepTrace record;
  UnitSchedule schedule;
  std::uint64_t fingerprint = 0;
};

struct StepPlanOptions {
  std::vector<std::int64_t> unit_bytes;  // By unit.
  std::vector<bool> frozen;              // By unit: no step changes its values.
  int ahead_visits = 1;
};

// Empty if a visit does not fit the budget.
std::optional<StepPlan> make_step_plan(
    const StepTrace& record,
    const StepPlanOptions& options,
    std::int64_t budget_bytes);

// The units that are whole or being gathered before the actions of visit `position`, ascending.
std::vector<UnitId> whole_before(const StepPlan& plan, std::size_t position);

}  // namespace sherd::plan
