// SPDX-License-Identifier: Apache-2.0
//
// The unit schedule says, before each visit of a recorded step, which units to
// drop and which to start gathering, so that every visit finds its units whole,
// the bytes whole or on their way stay within the budget of each visit, and the
// bytes gathered per step are few. How: docs/design/plan.md. Thread rule: pure
// functions and values; the same input gives the same schedule on every machine
// (no floating point, no time limit, no order of a hash table).
#pragma once

#include <cstdint>
#include <vector>
#include "base/status.h"
#include "plan/unit_id.h"

namespace sherd::plan {

struct ScheduleInput {
  // By unit; bytes when whole.
  std::vector<std::int64_t> unit_bytes;
  // Of one step, in order; each names its units ascending, at least one.
  std::vector<std::vector<UnitId>> visits;
  // By unit: its value outlives the step (frozen), so that it can stay whole
  // from its last visit to its first one of the next step.
  std::vector<bool> carried;
  // By visit: what may be whole or on its way while the visit runs.
  std::vector<std::int64_t> budget_bytes;
  // A gather may be issued this many visits before its use; 0: on demand. Room
  // for it is set aside where the budget has any, before units are kept.
  int ahead_visits = 1;
};

// Before a visit: first reshard all of the one, then start unsharding the other,
// each in this order.
struct VisitActions {
  // Ascending; none of the visit itself.
  std::vector<UnitId> reshard;
  // What the visit itself needs and is not there yet comes first, then what is
  // issued ahead, in the order of need; ascending within one visit.
  std::vector<UnitId> unshard;
};

// All figures are of one step in a row of equal ones: units in `initial` are
// there at no cost.
struct ScheduleReport {
  std::int64_t gathers = 0;
  std::int64_t gathered_bytes = 0;
  // No schedule inside the budget gathers less: farthest next use, allowed to
  // keep a part of a unit, without room for gathers ahead.
  std::int64_t lower_bound_bytes = 0;
  // Price of memory: by how much gathered_bytes falls with a tenth more budget
  // at every visit. 0 also when that goes into gathers ahead instead.
  std::int64_t tenth_more_saves_bytes = 0;
};

struct UnitSchedule {
  // Ascending: what is whole before the first visit because the step before
  // kept it (carried units only). What else is whole after the last visit has
  // no use any more. In the first step the caller gathers these itself.
  std::vector<UnitId> initial;
  // By visit.
  std::vector<VisitActions> before;
  ScheduleReport report;
};

// kInvalidArgument, naming visit, bytes needed and budget, when a visit does not
// fit its budget. Throws when the input contradicts itself: a unit that does not
// exist, a visit that is empty or not ascending, a list of the wrong length, a
// negative size or a sum of sizes of 2^61 or more.
Result<UnitSchedule> make_unit_schedule(const ScheduleInput& input);

// Equal for equal inputs, which have equal schedules: for ranks to compare. It
// changes when the way to make schedules does.
std::uint64_t fingerprint(const ScheduleInput& input);

}  // namespace sherd::plan
