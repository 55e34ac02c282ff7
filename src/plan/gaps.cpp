// SPDX-License-Identifier: Apache-2.0
#include "plan/gaps.h"

#include <algorithm>
#include "base/check.h"

namespace sherd::plan {
namespace {

bool has(const std::vector<UnitId>& units, UnitId unit) {
  return std::binary_search(units.begin(), units.end(), unit);
}

void insert(std::vector<UnitId>& units, UnitId unit) {
  units.insert(std::lower_bound(units.begin(), units.end(), unit), unit);
}

}  // namespace

std::int64_t bytes_of(
    std::span<const UnitId> units, std::span<const std::int64_t> sizes) {
  std::int64_t bytes = 0;
  for (const UnitId unit : units) {
    bytes += sizes[static_cast<std::size_t>(unit)];
  }
  return bytes;
}

UnitSets present_units(const ScheduleInput& input) {
  UnitSets present = input.visits;
  std::vector<std::int64_t> room;
  room.reserve(present.size());
  for (std::size_t visit = 0; visit < present.size(); ++visit) {
    room.push_back(
        input.budget_bytes[visit] - bytes_of(present[visit], input.unit_bytes));
  }
  // One distance after another, so that nearer uses get the room first.
  const std::size_t ahead = static_cast<std::size_t>(input.ahead_visits);
  for (std::size_t distance = 1; distance <= ahead && distance < present.size();
       ++distance) {
    for (std::size_t visit = 0; visit + distance < present.size(); ++visit) {
      for (const UnitId unit : input.visits[visit + distance]) {
        const std::int64_t bytes =
            input.unit_bytes[static_cast<std::size_t>(unit)];
        if (bytes <= room[visit] && has(present[visit + 1], unit) &&
            !has(present[visit], unit)) {
          insert(present[visit], unit);
          room[visit] -= bytes;
        }
      }
    }
  }
  return present;
}

GapProblem gap_problem(const UnitSets& present, const ScheduleInput& input) {
  struct Uses {
    int first = -1;
    int last = -1;
  };
  GapProblem problem;
  const int visits = static_cast<int>(present.size());
  std::vector<Uses> uses(input.unit_bytes.size());
  for (int visit = 0; visit < visits; ++visit) {
    const std::size_t v = static_cast<std::size_t>(visit);
    problem.room.push_back(
        input.budget_bytes[v] - bytes_of(present[v], input.unit_bytes));
    SHERD_ASSERT(problem.room.back() >= 0, "visit ", visit);
    for (const UnitId unit : present[v]) {
      const std::size_t u = static_cast<std::size_t>(unit);
      if (uses[u].first < 0) {
        uses[u].first = visit;
      } else if (uses[u].last + 1 < visit) {
        problem.gaps.push_back(
            {unit, input.unit_bytes[u], uses[u].last + 1, visit});
      }
      uses[u].last = visit;
    }
  }
  for (std::size_t u = 0; u < uses.size(); ++u) {
    if (input.carried[u] && uses[u].first >= 0) {
      problem.gaps.push_back(
          {static_cast<UnitId>(u), input.unit_bytes[u], uses[u].last + 1,
           visits + uses[u].first});
    }
  }
  std::sort(
      problem.gaps.begin(), problem.gaps.end(), [](const Gap& a, const Gap& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.unit < b.unit;
      });
  return problem;
}

}  // namespace sherd::plan
