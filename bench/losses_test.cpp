// SPDX-License-Identifier: Apache-2.0
#include "bench/losses.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The contender "ddp" has this `drift` in its third step.
std::vector<FirstLosses> losses_with(double drift) {
  return {
      {.name = "bound", .losses = {5.5, 9.0, 9.0}, .comparable = 1},
      {.name = "sherd", .losses = {5.5, 5.4, 5.3}, .comparable = 3},
      {.name = "ddp", .losses = {5.5, 5.4, 5.3 + drift}, .comparable = 3}};
}

TEST(Losses, AgreeWithinTheToleranceWhereTheyAreComparable) {
  EXPECT_THAT(disagreement(losses_with(0.0)), IsEmpty());
  EXPECT_THAT(disagreement(losses_with(0.9 * kLossTolerance)), IsEmpty());
}

TEST(Losses, ADifferenceNamesStepAndContenders) {
  EXPECT_THAT(
      disagreement(losses_with(-0.01)),
      AllOf(
          HasSubstr("step 3"), HasSubstr("sherd 5.300000"),
          HasSubstr("ddp 5.290000"), HasSubstr("within 0.0001")));
}

TEST(Losses, TheBoundsFirstLossCounts) {
  auto losses = losses_with(0.0);
  losses[0].losses[0] = 5.6;
  EXPECT_THAT(
      disagreement(losses),
      AllOf(HasSubstr("step 1"), HasSubstr("bound"), HasSubstr("sherd")));
}

TEST(Losses, WhatIsNoNumberAgreesWithNothing) {
  EXPECT_THAT(
      disagreement(losses_with(std::numeric_limits<double>::quiet_NaN())),
      HasSubstr("step 3"));
}

}  // namespace
}  // namespace sherd::bench
