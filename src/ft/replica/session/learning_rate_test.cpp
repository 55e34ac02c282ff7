// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <gmock/gmock.h>
#include <sherd/ft/replica_session.h>
#include "support/error_of.h"

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;

TEST(LearningRateFactor, FollowsTheSamplesThatAreThere) {
  using enum LearningRateScaling;
  EXPECT_EQ(learning_rate_factor(kNone, 12, 36), 1.0);
  EXPECT_EQ(learning_rate_factor(kLinear, 12, 36), 12.0 / 36.0);
  EXPECT_EQ(learning_rate_factor(kSquareRoot, 9, 36), 0.5);
  EXPECT_EQ(learning_rate_factor(kSquareRoot, 24, 36), std::sqrt(24.0 / 36.0));
}

TEST(LearningRateFactor, IsOneOfAFullStepAndMoreOfALargerOne) {
  for (const auto scaling :
       {LearningRateScaling::kNone, LearningRateScaling::kLinear,
        LearningRateScaling::kSquareRoot}) {
    EXPECT_EQ(learning_rate_factor(scaling, 36, 36), 1.0);
  }
  EXPECT_EQ(
      learning_rate_factor(LearningRateScaling::kSquareRoot, 144, 36), 2.0);
}

TEST(LearningRateFactor, NoSamplesAreRefused) {
  for (const auto& [samples, full] : {std::pair(0, 36), {12, 0}, {-1, -1}}) {
    EXPECT_THAT(
        test::error_of([samples = samples, full = full] {
          (void)learning_rate_factor(LearningRateScaling::kNone, samples, full);
        }),
        HasSubstr("expected samples of a step and of a full one"));
  }
}

}  // namespace
}  // namespace sherd::ft
