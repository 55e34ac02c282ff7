// SPDX-License-Identifier: Apache-2.0
#include "plan/placement.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/schedule_testing.h"

namespace sherd::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sizes that alignment matters for, and that it does not.
ScheduleInput random_placed_step(TestRandom& random, bool equal_units) {
  ScheduleInput input = random_step(
      random,
      {.equal_units = equal_units,
       .carried = !equal_units,
       .units_max = 12,
       .visits_max = 40,
       .ahead_visits_max = 2});
  const std::int64_t scale = random.in(0, 1) == 1 ? 50 : kPlaceAlignment;
  for (std::int64_t& bytes : input.unit_bytes) {
    bytes *= scale;
  }
  for (std::int64_t& bytes : input.budget_bytes) {
    bytes *= scale;
  }
  return input;
}

TEST(Placement, UnitsThatAreThereTogetherNeverOverlap) {
  for_seeds(1500, [](TestRandom& random) {
    const ScheduleInput input = random_placed_step(random, false);
    const UnitSchedule schedule = make_unit_schedule(input).value();
    const Placement placement = place_units(input, schedule);
    ASSERT_EQ(broken_place(input, schedule, placement), "");
    ASSERT_EQ(
        placement.lost_bytes,
        placement.arena_bytes - schedule.report.resident_bytes_peak);
    ASSERT_GE(placement.lost_bytes, 0);
  });
}

TEST(Placement, EqualUnitsLoseOnlyAlignment) {
  for_seeds(2000, [](TestRandom& random) {
    const ScheduleInput input = random_placed_step(random, true);
    const UnitSchedule schedule = make_unit_schedule(input).value();
    const std::int64_t bytes = input.unit_bytes[0];
    const std::int64_t units = schedule.report.resident_bytes_peak / bytes;
    const Placement placement = place_units(input, schedule);
    ASSERT_EQ(
        placement.arena_bytes,
        units * ((bytes + 127) / kPlaceAlignment) * kPlaceAlignment);
  });
}

TEST(Placement, ATransformerLosesNothing) {
  // Embedding, 32 layers, head; the root's norm is used with the head.
  constexpr std::int64_t kUnit = kPlaceAlignment;
  std::vector<std::int64_t> sizes(34, 12 * kUnit);
  sizes[32] = 40 * kUnit;
  sizes[33] = kUnit;
  Visits visits{{32}};
  for (UnitId unit = 0; unit < 32; ++unit) {
    visits.push_back({unit});
  }
  visits.push_back({32, 33});
  for (UnitId unit = 31; unit >= 0; --unit) {
    visits.push_back({unit});
  }
  visits.push_back({32});
  for (std::int64_t budget = 60 * kUnit; budget <= 425 * kUnit;
       budget += 5 * kUnit) {
    const ScheduleInput input = schedule_input(sizes, visits, budget, 1);
    const UnitSchedule schedule = make_unit_schedule(input).value();
    const Placement placement = place_units(input, schedule);
    EXPECT_EQ(placement.lost_bytes, 0) << budget;
  }
}

TEST(Placement, TheArenaFitsTheBudgetItWasMadeFor) {
  int planned_with_less = 0;
  int refused = 0;
  for_seeds(600, [&](TestRandom& random) {
    const ScheduleInput input = random_placed_step(random, false);
    const std::int64_t limit =
        *std::max_element(input.budget_bytes.begin(), input.budget_bytes.end());
    const Result<PlacedSchedule> result = make_placed_schedule(input);
    if (!result.ok()) {
      ++refused;
      ASSERT_EQ(result.status().code(), ErrorCode::kInvalidArgument);
      ASSERT_THAT(result.status().message(), HasSubstr("raise it to"));
      return;
    }
    const PlacedSchedule& placed = result.value();
    ASSERT_LE(placed.placement.arena_bytes, limit);
    ASSERT_EQ(broken_promise(input, placed.schedule), "");
    ASSERT_EQ(broken_promise(placed.input, placed.schedule), "");
    ASSERT_EQ(
        placed.schedule.report.lower_bound_bytes,
        make_unit_schedule(input).value().report.lower_bound_bytes);
    ASSERT_EQ(
        broken_place(placed.input, placed.schedule, placed.placement), "");
    planned_with_less += placed.input.budget_bytes != input.budget_bytes;
  });
  EXPECT_GT(planned_with_less, 0);
  EXPECT_GT(refused, 0);
}

TEST(Placement, TheBudgetThatARefusalNamesIsEnough) {
  const ScheduleInput input = schedule_input({100, 100}, {{0}, {0, 1}}, 200, 1);
  const Result<PlacedSchedule> refused = make_placed_schedule(input);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(
      refused.status().message(),
      HasSubstr("places need 256 bytes, alignment and holes included, but the "
                "budget is 200 bytes; raise it to at least 256"));
  ScheduleInput larger = input;
  larger.budget_bytes = {256, 256};
  EXPECT_EQ(make_placed_schedule(larger).value().placement.arena_bytes, 256);
}

TEST(Placement, ABudgetBelowAVisitIsRefusedAsWithoutPlaces) {
  const ScheduleInput input = schedule_input({100, 100}, {{0}, {0, 1}}, 150);
  EXPECT_EQ(
      make_placed_schedule(input).status().message(),
      make_unit_schedule(input).status().message());
}

TEST(Placement, AStepWithoutVisitsNeedsNoArena) {
  const PlacedSchedule placed =
      make_placed_schedule(schedule_input({3}, {}, 0)).value();
  EXPECT_EQ(placed.placement.arena_bytes, 0);
}

TEST(Placement, AUnitKeptOverTheStepBoundaryKeepsItsPlace) {
  ScheduleInput input = schedule_input({128, 128}, {{0}, {1}}, 256);
  input.carried = {true, false};
  const PlacedSchedule placed = make_placed_schedule(input).value();
  EXPECT_THAT(placed.schedule.initial, ElementsAre(0));
  EXPECT_EQ(placed.placement.arena_bytes, 256);
  EXPECT_NE(placed.placement.initial[0], placed.placement.unshard[1][0]);
}

}  // namespace
}  // namespace sherd::plan
