// SPDX-License-Identifier: Apache-2.0
#include "sim/gap.h"

#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::sim {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;

// The time until no other replica is lost and the others are connected.
Duration recovery(const WorldTimes& times) {
  return ft::CoordinatorOptions().settle + times.connect;
}

TEST(Gap, IsAStepAndTheRecovery) {
  WorldTimes times;
  times.step = milliseconds(500);
  std::vector<Duration> gaps;
  for (int part = 0; part < 10; ++part) {
    gaps.push_back(gap_of_loss(3, 2, times, part * times.step / 10));
  }
  // Computing goes on while the others connect, and the reduction is repeated.
  EXPECT_THAT(
      gaps,
      Each(AllOf(
          Ge(times.step),
          Lt(times.step + recovery(times) + milliseconds(10)))));
  // A replica that is lost just before its step ends costs the most.
  EXPECT_GT(gaps.back(), gaps.front());
  EXPECT_EQ(gaps.front(), gap_of_loss(3, 2, times, Duration(0)));
}

TEST(Gap, GrowsWithTheTimeToConnect) {
  WorldTimes times;
  times.step = milliseconds(20);
  const auto usual = gap_of_loss(3, 2, times, Duration(0));
  times.connect += milliseconds(100);
  EXPECT_EQ(gap_of_loss(3, 2, times, Duration(0)), usual + milliseconds(100));
}

TEST(Gap, NeedsSomebodyWhoStays) {
  EXPECT_THROW((void)gap_of_loss(1, 2, WorldTimes(), Duration(0)), Error);
}

}  // namespace
}  // namespace sherd::sim
