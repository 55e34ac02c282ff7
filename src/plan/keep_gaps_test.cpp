// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <gtest/gtest.h>
#include "plan/gaps.h"
#include "plan/schedule_testing.h"

namespace sherd::plan {
namespace {

GapProblem problem_of(const ScheduleInput& input) {
  return gap_problem(present_units(input), input);
}

std::int64_t missed_bytes(
    const GapProblem& problem, const std::vector<bool>& kept) {
  std::int64_t bytes = 0;
  for (std::size_t gap = 0; gap < kept.size(); ++gap) {
    bytes += kept[gap] ? 0 : problem.gaps[gap].bytes;
  }
  return bytes;
}

bool within_room(const GapProblem& problem, const std::vector<bool>& kept) {
  std::vector<std::int64_t> room = problem.room;
  for (std::size_t g = 0; g < kept.size(); ++g) {
    const Gap& gap = problem.gaps[g];
    for (int visit = gap.begin; kept[g] && visit < gap.end; ++visit) {
      room[static_cast<std::size_t>(visit % problem.visits())] -= gap.bytes;
    }
  }
  return std::all_of(
      room.begin(), room.end(), [](std::int64_t left) { return left >= 0; });
}

TEST(KeepGaps, StaysWithinTheRoomAndBetweenRuleAndBound) {
  for_seeds(1500, [](TestRandom& random) {
    const GapProblem problem = problem_of(random_step(
        random,
        {.carried = true,
         .units_max = 12,
         .visits_max = 40,
         .ahead_visits_max = 2}));
    const std::vector<bool> rule = keep_by_farthest_next_use(problem);
    const std::vector<bool> kept = keep_gaps(problem);
    ASSERT_TRUE(within_room(problem, rule));
    ASSERT_TRUE(within_room(problem, kept));
    ASSERT_LE(missed_bytes(problem, kept), missed_bytes(problem, rule));
    ASSERT_LE(missed_bytes_lower_bound(problem), missed_bytes(problem, kept));
  });
}

// A list as in docs/design/plan.md: in any order, 4 to 8 units.
ScheduleInput random_list(TestRandom& random, bool carried) {
  std::vector<std::int64_t> sizes;
  std::int64_t total = 0;
  const std::int64_t units = random.in(4, 8);
  for (std::int64_t unit = 0; unit < units; ++unit) {
    sizes.push_back(random.in(1, 20));
    total += sizes.back();
  }
  const std::int64_t largest = *std::max_element(sizes.begin(), sizes.end());
  Visits visits;
  for (std::int64_t left = random.in(12, 30); left > 0; --left) {
    visits.push_back({static_cast<UnitId>(random.in(0, units - 1))});
  }
  ScheduleInput input = schedule_input(
      std::move(sizes), std::move(visits), random.in(largest, total));
  for (std::size_t unit = 0; carried && unit < input.carried.size(); ++unit) {
    input.carried[unit] = random.in(0, 1) == 1;
  }
  return input;
}

// In thousandths of the optimum.
struct Distance {
  int lists = 0;
  int missed = 0;
  std::int64_t sum = 0;
  std::int64_t worst = 0;

  void add(std::int64_t found, std::int64_t least) {
    const std::int64_t distance = 1000 * (found - least) / least;
    ++lists;
    missed += found > least ? 1 : 0;
    sum += distance;
    worst = std::max(worst, distance);
  }
};

void record(const char* name, const Distance& distance) {
  ::testing::Test::RecordProperty(
      name,
      std::to_string(distance.lists) + " lists, " +
          std::to_string(distance.missed) + " miss the optimum, mean " +
          std::to_string(distance.sum / std::max(1, distance.lists)) +
          " and worst " + std::to_string(distance.worst) +
          " thousandths above it");
}

struct RuleAndExchanges {
  Distance rule;
  Distance exchanges;
};

RuleAndExchanges measure(bool carried) {
  RuleAndExchanges result;
  for_seeds(300, [&](TestRandom& random) {
    const ScheduleInput input = random_list(random, carried);
    const std::int64_t least = least_gathered_bytes(input);
    if (least == 0) {
      return;
    }
    const GapProblem problem = problem_of(input);
    const std::int64_t found =
        make_unit_schedule(input).value().report.gathered_bytes;
    const std::int64_t gained =
        missed_bytes(problem, keep_by_farthest_next_use(problem)) -
        missed_bytes(problem, keep_gaps(problem));
    result.rule.add(found + gained, least);
    result.exchanges.add(found, least);
  });
  record("rule", result.rule);
  record("exchanges", result.exchanges);
  return result;
}

TEST(KeepGaps, ExchangesFindWhatTheRuleMisses) {
  const RuleAndExchanges lists = measure(false);
  EXPECT_GE(lists.rule.missed * 4, lists.rule.lists);
  EXPECT_LE(lists.exchanges.missed * 100, lists.exchanges.lists);
  EXPECT_LE(lists.exchanges.worst, 20);
}

TEST(KeepGaps, ExchangesFindWhatTheRuleMissesOverTheStepBoundary) {
  const RuleAndExchanges lists = measure(true);
  EXPECT_GE(lists.rule.missed * 4, lists.rule.lists);
  EXPECT_LE(lists.exchanges.missed * 50, lists.exchanges.lists);
  EXPECT_LE(lists.exchanges.worst, 50);
}

// 48 to 96 units, some of them three times as large, the first one tied to the last.
TEST(KeepGaps, LongListsEndWithinTwoThousandthsOfTheBound) {
  Distance rule;
  Distance exchanges;
  for_seeds(12, [&](TestRandom& random) {
    std::vector<std::int64_t> sizes;
    std::int64_t total = 0;
    const int units = static_cast<int>(random.in(48, 96));
    for (int unit = 0; unit < units; ++unit) {
      sizes.push_back(random.in(50, 100) * (random.in(0, 5) == 0 ? 3 : 1));
      total += sizes.back();
    }
    const int segment = random.in(0, 1) == 0 ? 1 : 4;
    const int batches = random.in(0, 1) == 0 ? 1 : 4;
    Visits visits = segment_visits(units, segment, batches);
    for (std::vector<UnitId>& set : visits) {
      if (set[0] == units - 1) {
        set.insert(set.begin(), 0);
      }
    }
    const ScheduleInput input = schedule_input(
        std::move(sizes), std::move(visits), random.in(600, total));
    const UnitSchedule::Report report =
        make_unit_schedule(input).value().report;
    const GapProblem problem = problem_of(input);
    const std::int64_t gained =
        missed_bytes(problem, keep_by_farthest_next_use(problem)) -
        missed_bytes(problem, keep_gaps(problem));
    rule.add(report.gathered_bytes + gained, report.lower_bound_bytes);
    exchanges.add(report.gathered_bytes, report.lower_bound_bytes);
  });
  record("rule", rule);
  record("exchanges", exchanges);
  EXPECT_GE(rule.worst, 5);
  EXPECT_LE(exchanges.worst, 2);
}

}  // namespace
}  // namespace sherd::plan
