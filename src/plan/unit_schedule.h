// SPDX-License-Identifier: Apache-2.0
//
// The unit schedule: before each visit of a recorded step, which units to drop and which to start
// gathering, so that every visit finds its units whole, the bytes that are whole or being gathered
// stay within the budget of each visit, and few bytes are gathered per step. How:
// docs/design/plan.md. Thread rule: pure functions and values; the same input gives the same
// schedule on every machine (no floating point, no time limit, no order of a hash table).
#pragma once

#include <cstdint>
#include <vector>
#include "base/status.h"
#include "plan/unit_id.h"

namespace sherd::plan {

struct ScheduleInput {
  // By unit: its bytes when whole.
  std::vector<std::int64_t> unit_bytes;
  // The visits of one step in order; each names at least one unit, ascending.
  std::vector<std::vector<UnitId>> visits;
  // By unit: whether it may stay whole from its last visit to its first visit in the next step,
  // because its values do not change (frozen).
  std::vector<bool> carried;
  // By visit: the bytes that may be whole or being gathered while it runs.
  std::vector<std::int64_t> budget_bytes;
  // A gather may be issued this many visits before its use; 0: on demand. Room for it is reserved
  // before units are kept.
  int ahead_visits = 1;
};

// The actions before a visit: reshard first, then start unsharding.
struct VisitActions {
  // Ascending; none of the visit itself.
  std::vector<UnitId> reshard;
  // In the order of need, so the units that the visit itself lacks come first; ascending within one
  // visit.
  std::vector<UnitId> unshard;
};

struct UnitSchedule {
  // Figures of one step in a series of equal ones: the units in `initial` cost nothing.
  struct Report {
    std::int64_t gathers = 0;
    std::int64_t gathered_bytes = 0;
    // No schedule within the budget gathers less. Computed by farthest next use with parts of units
    // kept and without room for early gathers.
    std::int64_t lower_bound_bytes = 0;
    // The price of memory: by how much gathered_bytes falls with a tenth more budget at every
    // visit. Also 0 if early gathers use up that tenth.
    std::int64_t tenth_more_saves_bytes = 0;
  };

  // Ascending: the carried units that the step before kept whole. In the first step the caller
  // gathers them itself. Anything else that is whole after the last visit can be dropped.
  std::vector<UnitId> initial;
  // By visit.
  std::vector<VisitActions> before;
  Report report;
};

// Returns kInvalidArgument, naming visit, bytes needed and budget, if a visit does not fit its
// budget. Throws if the input contradicts itself: a unit that does not exist, a visit that is empty
// or not ascending, a list of the wrong length, a negative size or a sum of sizes of 2^61 or more.
Result<UnitSchedule> make_unit_schedule(const ScheduleInput& input);

// A digest that ranks compare: equal for equal inputs, which have equal schedules. It also changes
// when the way of making schedules does.
std::uint64_t fingerprint(const ScheduleInput& input);

}  // namespace sherd::plan
