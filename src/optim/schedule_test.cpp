// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/schedule.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr LearningRateSchedule kCosine = {
    .peak = 1.0, .floor = 0.1, .warmup_steps = 10, .total_steps = 110};

TEST(Schedule, ClimbsInEqualPartsAndNeverStartsAtZero) {
  EXPECT_DOUBLE_EQ(learning_rate_at(0, kCosine), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(4, kCosine), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(9, kCosine), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(10, kCosine), 1.0);
}

TEST(Schedule, CosineIsHalfWayInTheMiddleAndEndsAtTheFloor) {
  EXPECT_NEAR(learning_rate_at(60, kCosine), 0.55, 1e-12);
  EXPECT_GT(learning_rate_at(35, kCosine), 0.775);  // Above the line.
  EXPECT_LT(learning_rate_at(85, kCosine), 0.325);  // Below it.
  EXPECT_GT(learning_rate_at(109, kCosine), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(110, kCosine), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(1000000, kCosine), 0.1);
}

TEST(Schedule, LinearIsALine) {
  auto schedule = kCosine;
  schedule.decay = Decay::kLinear;
  EXPECT_NEAR(learning_rate_at(35, schedule), 0.775, 1e-12);
  EXPECT_NEAR(learning_rate_at(85, schedule), 0.325, 1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at(110, schedule), 0.1);
}

TEST(Schedule, ConstantStaysAtThePeak) {
  auto schedule = kCosine;
  schedule.decay = Decay::kConstant;
  EXPECT_DOUBLE_EQ(learning_rate_at(0, schedule), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(500, schedule), 1.0);
}

TEST(Schedule, NeverRisesAfterTheWarmUp) {
  for (const Decay decay : {Decay::kCosine, Decay::kLinear}) {
    auto schedule = kCosine;
    schedule.decay = decay;
    for (int step = 10; step < 120; ++step) {
      EXPECT_LE(
          learning_rate_at(step + 1, schedule),
          learning_rate_at(step, schedule));
    }
  }
}

TEST(Schedule, WarmUpMayBeEverythingOrNothing) {
  EXPECT_DOUBLE_EQ(learning_rate_at(0, {.peak = 1.0, .total_steps = 10}), 1.0);
  EXPECT_DOUBLE_EQ(
      learning_rate_at(
          5, {.peak = 1.0, .floor = 0.2, .warmup_steps = 5, .total_steps = 5}),
      0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(0, {.peak = 1.0, .floor = 0.3}), 0.3);
}

TEST(Schedule, RefusesContradictions) {
  const auto refused = [](std::int64_t step, LearningRateSchedule schedule,
                          const char* part) {
    EXPECT_THAT(
        [&] { (void)learning_rate_at(step, schedule); },
        ThrowsMessage<Error>(HasSubstr(part)));
  };
  refused(-1, kCosine, "[optim] schedule: expected a step of at least 0");
  refused(0, {.peak = -1.0}, "peak of at least 0, found -1");
  refused(0, {.peak = 1.0, .floor = 2.0}, "peak 1, found 2");
  refused(0, {.floor = -1.0}, "found -1");
  refused(0, {.warmup_steps = -1}, "warmup_steps");
  refused(0, {.warmup_steps = 5, .total_steps = 4}, "5, found 4");
}

}  // namespace
}  // namespace sherd
