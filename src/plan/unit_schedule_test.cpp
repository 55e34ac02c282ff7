// SPDX-License-Identifier: Apache-2.0
#include "plan/unit_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/schedule_testing.h"

namespace sherd::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

UnitSchedule schedule_of(const ScheduleInput& input) {
  return make_unit_schedule(input).value();
}

std::int64_t traffic_of(const ScheduleInput& input) {
  const UnitSchedule schedule = schedule_of(input);
  EXPECT_EQ(broken_promise(input, schedule), "");
  return schedule.report.gathered_bytes;
}

std::vector<std::int64_t> equal_units(int units, std::int64_t bytes = 1) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(units), bytes);
}

// (2G - (2G - 1) b) M with b = slots / units and M = units.
TEST(UnitSchedule, TrafficOfAnEqualChainFollowsTheClosedForm) {
  for (const int units : {1, 2, 3, 4, 7, 32}) {
    for (const int batches : {1, 2, 4}) {
      for (int slots = 1; slots <= units; ++slots) {
        EXPECT_EQ(
            traffic_of(schedule_input(
                equal_units(units), chain_visits(units, batches), slots)),
            2 * batches * units - (2 * batches - 1) * slots)
            << units << " units, " << batches << " batches, " << slots;
      }
    }
  }
}

TEST(UnitSchedule, GathersEqualUnitsAsSeldomAsPossible) {
  for_seeds(2000, [](TestRandom& random) {
    const ScheduleInput input = random_step(random, {.equal_units = true});
    const UnitSchedule schedule = schedule_of(input);
    ASSERT_EQ(broken_promise(input, schedule), "");
    ASSERT_EQ(schedule.report.gathered_bytes, least_gathered_bytes(input));
  });
}

TEST(UnitSchedule, KeepsItsPromisesOnAnyStep) {
  for_seeds(4000, [](TestRandom& random) {
    const ScheduleInput input = random_step(
        random,
        {.carried = true,
         .units_max = 12,
         .visits_max = 40,
         .ahead_visits_max = 3});
    ASSERT_EQ(broken_promise(input, schedule_of(input)), "");
  });
}

}  // namespace
}  // namespace sherd::plan
