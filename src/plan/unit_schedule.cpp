// SPDX-License-Identifier: Apache-2.0
#include "plan/unit_schedule.h"

#include <algorithm>
#include <iterator>
#include <string>
#include "base/check.h"
#include "base/hash.h"
#include "plan/budget.h"
#include "plan/gaps.h"

namespace sherd::plan {
namespace {

// Raise this with any change that gives an equal input a different schedule.
constexpr std::uint64_t kVersion = 1;

void check_input(const ScheduleInput& input) {
  (void)total_unit_bytes({.bytes = input.unit_bytes});
  const std::size_t units = input.unit_bytes.size();
  SHERD_CHECK(
      input.carried.size() == units, "[plan] `carried` names ",
      input.carried.size(), " units; expected ", units);
  SHERD_CHECK(
      input.budget_bytes.size() == input.visits.size(), "[plan] ",
      input.budget_bytes.size(), " budgets for ", input.visits.size(),
      " visits; expected one for each");
  SHERD_CHECK(
      input.ahead_visits >= 0, "[plan] gathers ", input.ahead_visits,
      " visits ahead; expected at least 0");
  for (std::size_t visit = 0; visit < input.visits.size(); ++visit) {
    const std::vector<UnitId>& set = input.visits[visit];
    SHERD_CHECK(!set.empty(), "[plan] visit ", visit, " names no unit");
    for (std::size_t i = 0; i < set.size(); ++i) {
      SHERD_CHECK(
          set[i] >= 0 && static_cast<std::size_t>(set[i]) < units,
          "[plan] visit ", visit, " names unit ", set[i], " of ", units);
      SHERD_CHECK(
          i == 0 || set[i - 1] < set[i], "[plan] visit ", visit, " names unit ",
          set[i], " after unit ", set[i - 1], "; expected them ascending");
    }
  }
}

Status check_floor(const ScheduleInput& input) {
  for (std::size_t visit = 0; visit < input.visits.size(); ++visit) {
    const std::vector<UnitId>& set = input.visits[visit];
    const std::int64_t needed = bytes_of(set, input.unit_bytes);
    if (needed <= input.budget_bytes[visit]) {
      continue;
    }
    std::string names;
    for (const UnitId unit : set) {
      names +=
          str(names.empty() ? "" : ", ", unit, " (",
              input.unit_bytes[static_cast<std::size_t>(unit)], " bytes)");
    }
    return {
        ErrorCode::kInvalidArgument,
        str("[plan] visit ", visit, " needs ", needed,
            " bytes whole at once, units ", names, ", but its budget is ",
            input.budget_bytes[visit], " bytes; raise it to at least ", needed,
            " or cut the model into smaller units")};
  }
  return {};
}

struct Residents {
  std::vector<UnitId> initial;
  UnitSets at;  // By visit: the residents while it runs.
};

// The units that are present in any case and those that are kept over gaps.
Residents residents_of(
    const GapProblem& problem,
    const std::vector<bool>& kept,
    const UnitSets& present) {
  Residents residents{.initial = {}, .at = present};
  for (std::size_t g = 0; g < kept.size(); ++g) {
    const Gap& gap = problem.gaps[g];
    if (!kept[g]) {
      continue;
    }
    for (int visit = gap.begin; visit < gap.end; ++visit) {
      residents.at[static_cast<std::size_t>(visit % problem.visits())]
          .push_back(gap.unit);
    }
    if (gap.end >= problem.visits()) {
      residents.initial.push_back(gap.unit);
    }
  }
  std::sort(residents.initial.begin(), residents.initial.end());
  for (std::vector<UnitId>& units : residents.at) {
    std::sort(units.begin(), units.end());
  }
  return residents;
}

std::vector<UnitId> without(
    const std::vector<UnitId>& units, const std::vector<UnitId>& others) {
  std::vector<UnitId> result;
  std::set_difference(
      units.begin(), units.end(), others.begin(), others.end(),
      std::back_inserter(result));
  return result;
}

// Moves the units of `set` from `pending` to the end of `ordered`.
void take(
    const std::vector<UnitId>& set,
    std::vector<UnitId>& pending,
    std::vector<UnitId>& ordered) {
  std::set_intersection(
      set.begin(), set.end(), pending.begin(), pending.end(),
      std::back_inserter(ordered));
  pending = without(pending, set);
}

// Sorts by need; every gather is issued at most `ahead_visits` early.
std::vector<UnitId> by_need(
    const ScheduleInput& input, std::size_t visit, std::vector<UnitId> units) {
  std::vector<UnitId> ordered;
  while (!units.empty()) {
    SHERD_ASSERT(visit < input.visits.size(), "unit ", units[0], " is unused");
    take(input.visits[visit++], units, ordered);
  }
  return ordered;
}

std::vector<VisitActions> actions_of(
    const ScheduleInput& input, const Residents& residents) {
  std::vector<VisitActions> before;
  const std::vector<UnitId>* now = &residents.initial;
  for (std::size_t visit = 0; visit < residents.at.size(); ++visit) {
    const std::vector<UnitId>& next = residents.at[visit];
    before.push_back(
        {.reshard = without(*now, next),
         .unshard = by_need(input, visit, without(next, *now))});
    now = &next;
  }
  return before;
}

UnitSchedule solve(const ScheduleInput& input) {
  const UnitSets present = present_units(input);
  const GapProblem problem = gap_problem(present, input);
  Residents residents = residents_of(problem, keep_gaps(problem), present);
  UnitSchedule schedule;
  schedule.before = actions_of(input, residents);
  UnitSchedule::Report& report = schedule.report;
  for (const VisitActions& actions : schedule.before) {
    report.gathers += static_cast<std::int64_t>(actions.unshard.size());
    report.gathered_bytes += bytes_of(actions.unshard, input.unit_bytes);
  }
  schedule.initial = std::move(residents.initial);
  return schedule;
}

// The first gathers, which no budget avoids, and the gaps that cannot be bridged.
std::int64_t lower_bound(const ScheduleInput& input) {
  std::vector<bool> seen(input.unit_bytes.size(), false);
  std::int64_t first_bytes = 0;
  for (const std::vector<UnitId>& set : input.visits) {
    for (const UnitId unit : set) {
      const std::size_t u = static_cast<std::size_t>(unit);
      if (!seen[u] && !input.carried[u]) {
        first_bytes += input.unit_bytes[u];
      }
      seen[u] = true;
    }
  }
  return first_bytes +
      missed_bytes_lower_bound(gap_problem(input.visits, input));
}

// A budget for more than all units is as good as one for all of them.
ScheduleInput with_a_tenth_more(ScheduleInput input) {
  const std::int64_t total = total_unit_bytes({.bytes = input.unit_bytes});
  for (std::int64_t& bytes : input.budget_bytes) {
    bytes = std::min(bytes, total);
    bytes += bytes / 10;
  }
  return input;
}

}  // namespace

Result<UnitSchedule> make_unit_schedule(const ScheduleInput& input) {
  check_input(input);
  if (Status floor = check_floor(input); !floor.ok()) {
    return floor;
  }
  UnitSchedule schedule = solve(input);
  UnitSchedule::Report& report = schedule.report;
  report.lower_bound_bytes = lower_bound(input);
  report.tenth_more_saves_bytes = std::max<std::int64_t>(
      0,
      report.gathered_bytes -
          solve(with_a_tenth_more(input)).report.gathered_bytes);
  return schedule;
}

std::uint64_t fingerprint(const ScheduleInput& input) {
  const auto word = [](std::int64_t value) {
    return static_cast<std::uint64_t>(value);
  };
  Hash64 hash;
  hash.add(kVersion).add(word(input.ahead_visits));
  hash.add(std::uint64_t{input.unit_bytes.size()});
  for (std::size_t unit = 0; unit < input.unit_bytes.size(); ++unit) {
    hash.add(word(input.unit_bytes[unit]));
    hash.add(std::uint64_t{unit < input.carried.size() && input.carried[unit]});
  }
  hash.add(std::uint64_t{input.visits.size()});
  for (std::size_t visit = 0; visit < input.visits.size(); ++visit) {
    hash.add(std::uint64_t{input.visits[visit].size()});
    for (const UnitId unit : input.visits[visit]) {
      hash.add(word(unit));
    }
  }
  for (const std::int64_t bytes : input.budget_bytes) {
    hash.add(word(bytes));
  }
  return hash.value();
}

}  // namespace sherd::plan
