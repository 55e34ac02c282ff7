// SPDX-License-Identifier: Apache-2.0
#include "plan/memory_plan.h"

#include <optional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "plan/random_testing.h"

namespace sherd::plan {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr UnitChoice kAll{.keep_whole = true, .keep_activations = true};

StepMemory random_step_memory(TestRandom& random, std::int64_t units_max) {
  StepMemory step;
  const auto units = random.in(0, units_max);
  for (std::int64_t unit = 0; unit < units; ++unit) {
    step.units.push_back(
        {.whole_bytes = random.in(0, 30),
         .gather_ns = random.in(0, 30),
         .activation_bytes = random.in(0, 60),
         .recompute_ns = random.in(0, 30)});
  }
  for (std::int64_t k = 0; k <= units; ++k) {
    step.base_bytes.push_back(random.in(0, 100));
  }
  step.base_ns = random.in(0, 100);
  return step;
}

// Tries every choice of every unit.
std::optional<std::int64_t> least_ns(
    const StepMemory& step, std::int64_t bytes_max) {
  std::optional<std::int64_t> least;
  std::vector<UnitChoice> choice(step.units.size());
  for (std::uint64_t code = 0; code < 1ULL << (2 * choice.size()); ++code) {
    for (std::size_t unit = 0; unit < choice.size(); ++unit) {
      choice[unit] = {
          .keep_whole = (code >> (2 * unit) & 1U) != 0,
          .keep_activations = (code >> (2 * unit + 1) & 1U) != 0};
    }
    const auto cost = cost_of(step, choice);
    if (cost.peak_bytes <= bytes_max &&
        cost.step_ns < least.value_or(cost.step_ns + 1)) {
      least = cost.step_ns;
    }
  }
  return least;
}

TEST(MemoryPlan, IsTheBestOfAllChoices) {
  for_seeds(300, [](TestRandom& random) {
    const auto step = random_step_memory(random, 5);
    const auto bytes_max = memory_floor(step) + random.in(0, 250);
    const auto plan = plan_memory(step, {.bytes_max = bytes_max}).value();
    const auto cost = cost_of(step, plan.units);
    ASSERT_EQ(plan.peak_bytes, cost.peak_bytes);
    ASSERT_EQ(plan.step_ns, cost.step_ns);
    ASSERT_LE(plan.peak_bytes, bytes_max);
    ASSERT_EQ(plan.step_ns, least_ns(step, bytes_max));
    ASSERT_EQ(plan.lower_bound_ns, plan.step_ns);
  });
}

TEST(MemoryPlan, WithFewStatesIsWithinTheLimitAndAboveItsBound) {
  for_seeds(300, [](TestRandom& random) {
    const auto step = random_step_memory(random, 5);
    const auto bytes_max = memory_floor(step) + random.in(0, 250);
    const auto plan =
        plan_memory(step, {.bytes_max = bytes_max, .states_max = 4}).value();
    ASSERT_LE(plan.peak_bytes, bytes_max);
    ASSERT_LE(plan.lower_bound_ns, least_ns(step, bytes_max).value());
    ASSERT_GE(plan.step_ns, least_ns(step, bytes_max).value());
  });
}

TEST(MemoryPlan, MoreMemoryIsNeverSlower) {
  for_seeds(100, [](TestRandom& random) {
    const auto step = random_step_memory(random, 12);
    auto bytes_max = memory_floor(step);
    auto before = plan_memory(step, {.bytes_max = bytes_max}).value();
    for (int i = 0; i < 10; ++i) {
      bytes_max += random.in(1, 100);
      const auto plan = plan_memory(step, {.bytes_max = bytes_max}).value();
      ASSERT_LE(plan.step_ns, before.step_ns);
      before = plan;
    }
  });
}

TEST(MemoryPlan, KeepsAllWhereThereIsRoomAndNothingAtTheFloor) {
  StepMemory step;
  step.units.assign(
      8,
      {.whole_bytes = 3,
       .gather_ns = 1,
       .activation_bytes = 7,
       .recompute_ns = 1});
  step.base_bytes.assign(9, 100);
  step.base_ns = 50;
  const auto floor = plan_memory(step, {.bytes_max = 100}).value();
  EXPECT_THAT(floor.units, Each(UnitChoice()));
  EXPECT_EQ(floor.step_ns, 66);
  const auto all = plan_memory(step, {.bytes_max = 180}).value();
  EXPECT_THAT(all.units, Each(kAll));
  EXPECT_EQ(all.step_ns, 50);
  EXPECT_EQ(all.peak_bytes, 180);
}

TEST(MemoryPlan, SpendsNothingOnWhatSavesNoTime) {
  StepMemory step;
  step.units.assign(4, {.whole_bytes = 5, .activation_bytes = 5});
  step.base_bytes.assign(5, 1);
  EXPECT_THAT(
      plan_memory(step, {.bytes_max = 1000}).value().units, Each(UnitChoice()));
}

TEST(MemoryPlan, OfALargeModelIsCloseToItsBound) {
  for_seeds(5, [](TestRandom& random) {
    StepMemory step;
    for (int unit = 0; unit < 96; ++unit) {
      step.units.push_back(
          {.whole_bytes = random.in(50'000'000, 100'000'000),
           .gather_ns = random.in(10'000'000, 20'000'000),
           .activation_bytes = random.in(100'000'000, 400'000'000),
           .recompute_ns = random.in(10'000'000, 90'000'000)});
    }
    step.base_bytes.assign(97, 1'000'000'000);
    step.base_ns = 10'000'000'000;
    const auto plan =
        plan_memory(step, {.bytes_max = 12'000'000'000, .states_max = 2000})
            .value();
    EXPECT_LT(plan.lower_bound_ns, plan.step_ns) << "not solved exactly";
    EXPECT_LE(plan.step_ns - plan.lower_bound_ns, plan.step_ns / 100);
  });
}

TEST(MemoryPlan, RefusesALimitBelowTheFloorAndNamesIt) {
  StepMemory step;
  step.units.assign(2, {.whole_bytes = 5, .activation_bytes = 5});
  step.base_bytes = {70, 90, 80};
  const auto status = plan_memory(step, {.bytes_max = 89}).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("89 bytes is below its floor of 90"));
}

TEST(MemoryPlan, RefusesFiguresThatContradictEachOther) {
  StepMemory step;
  step.units.resize(2);
  step.base_bytes = {1, 2};
  EXPECT_THROW((void)memory_floor(step), Error);
  step.base_bytes = {1, 2, -1};
  EXPECT_THROW((void)memory_floor(step), Error);
  step.base_bytes = {1, 2, 3};
  step.units[0].whole_bytes = std::int64_t{1} << 62;
  EXPECT_THROW((void)memory_floor(step), Error);
}

}  // namespace
}  // namespace sherd::plan
