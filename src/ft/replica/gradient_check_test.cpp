// SPDX-License-Identifier: Apache-2.0
//
// Which gradients are unusable.
#include "ft/replica/gradient_check.h"

#include <cmath>
#include <limits>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/base/error.h>

namespace sherd::ft {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Floats = std::vector<float>;

// The gradients are a single part.
std::optional<GradientFault> fault_of(
    GradientCheck& check, const Floats& gradients) {
  check.begin(1);
  EXPECT_FALSE(check.inspect(0, gradients));
  return check.finish();
}

GradientCheck& used_to(GradientCheck& check, float value) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(fault_of(check, Floats(100, value)));
  }
  return check;
}

TEST(GradientStats, SumsSquaresOfAnyLength) {
  for (const std::size_t size : {0U, 1U, 15U, 16U, 17U, 4096U, 4097U, 10000U}) {
    const auto look = gradient_stats(Floats(size, 2));
    EXPECT_TRUE(look.finite);
    EXPECT_DOUBLE_EQ(look.squares, 4.0 * static_cast<double>(size));
  }
}

TEST(GradientStats, FindsOneThatIsNotFiniteWhereverItIs) {
  for (const float bad : {kInf, -kInf, kNan}) {
    for (const std::size_t at : {0U, 17U, 4095U, 4096U, 9998U, 9999U}) {
      Floats gradients(10000, 1);
      gradients[at] = bad;
      EXPECT_FALSE(gradient_stats(gradients).finite) << bad << " at " << at;
      EXPECT_DOUBLE_EQ(gradient_stats(gradients).squares, 9999);
    }
  }
}

TEST(GradientStats, IsNotFooledBySquaresThatOverflow) {
  Floats gradients(5000, 1);
  gradients[4999] = std::numeric_limits<float>::max();
  const auto look = gradient_stats(gradients);
  EXPECT_TRUE(look.finite);
  EXPECT_GT(look.squares, 1e76);
}

TEST(GradientCheck, LeavesOutWhatIsNotFinite) {
  GradientCheck check({});
  const auto fault = fault_of(check, {1, kNan, 2});
  ASSERT_TRUE(fault.has_value());
  EXPECT_THAT(fault->reason, HasSubstr("not a number"));
  EXPECT_FALSE(fault->stop);
  EXPECT_FALSE(fault_of(check, {1, 2}));
}

TEST(GradientCheck, LeavesOutANormThatIsFarFromTheUsualOne) {
  GradientCheck check({});
  used_to(check, 0.5F);
  Floats spike(100, 0.5F);
  spike[7] = 1e7F;
  const auto fault = fault_of(check, spike);
  ASSERT_TRUE(fault.has_value());
  EXPECT_THAT(fault->reason, HasSubstr("usually it is 5"));
  // It has not become usual by being repeated.
  EXPECT_TRUE(fault_of(check, spike));
}

TEST(GradientCheck, FollowsANormThatChangesSlowly) {
  GradientCheck check({.norm_ratio_max = 2});
  float value = 1;
  used_to(check, value);
  for (int i = 0; i < 100; ++i) {
    value *= 1.05F;
    EXPECT_FALSE(fault_of(check, Floats(10, value * std::sqrt(10.0F)))) << i;
  }
}

TEST(GradientCheck, KnowsNothingUsualAtItsBeginningNorOfZeros) {
  GradientCheck check({.norm_ratio_max = 2});
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(fault_of(check, Floats(10)));
  }
  EXPECT_FALSE(fault_of(check, Floats(10, 1e6F)));
  EXPECT_FALSE(fault_of(check, Floats(10, 1)));
}

TEST(GradientCheck, DoesWhatItIsTold) {
  GradientCheck stops(
      {.non_finite = GradientPolicy::kStop, .outlier = GradientPolicy::kStop});
  EXPECT_TRUE(fault_of(stops, {kInf})->stop);
  EXPECT_TRUE(fault_of(used_to(stops, 1), Floats(10, 1e7F))->stop);
  GradientCheck gives(
      {.non_finite = GradientPolicy::kGive, .outlier = GradientPolicy::kGive});
  EXPECT_FALSE(fault_of(gives, {kInf}));
  EXPECT_FALSE(fault_of(used_to(gives, 1), Floats(10, 1e7F)));
  GradientCheck never({.norm_ratio_max = 0});
  EXPECT_FALSE(fault_of(used_to(never, 1), Floats(10, 1e30F)));
}

TEST(GradientCheck, HoldsBackWhatIsBadAndTheLastPart) {
  GradientCheck check({});
  check.begin(4);
  EXPECT_TRUE(check.inspect(2, Floats(5, 1)));
  EXPECT_FALSE(check.inspect(1, Floats{kNan}));
  EXPECT_TRUE(check.inspect(3, Floats(5, 1)));
  EXPECT_FALSE(check.inspect(3, Floats(5, 1)));  // Came before.
  EXPECT_FALSE(check.inspect(0, Floats(5, 1)));
  EXPECT_TRUE(check.finish());
}

TEST(GradientCheck, RefusesARatioThatMakesNoSense) {
  for (const double ratio : {-1.0, 0.5, 1.0}) {
    EXPECT_THROW(GradientCheck({.norm_ratio_max = ratio}), Error) << ratio;
  }
}

}  // namespace
}  // namespace sherd::ft
