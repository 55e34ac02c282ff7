// SPDX-License-Identifier: Apache-2.0
#include "sim/gap.h"

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
using ::testing::SizeIs;

// Until nobody else is lost, and until the others are connected.
Duration recovery(const WorldTimes& times) {
  return ft::CoordinatorOptions().settle + times.connect;
}

TEST(Gap, IsAStepAndTheRecovery) {
  WorldTimes times;
  times.step = milliseconds(500);
  const auto gaps = gaps_of_losses(3, 2, times, 10);
  ASSERT_THAT(gaps, SizeIs(10));
  // Computing goes on while the others find each other, and the reduction is made again.
  EXPECT_THAT(
      gaps,
      Each(AllOf(
          Ge(times.step),
          Lt(times.step + recovery(times) + milliseconds(10)))));
  // One that is lost just before its step ends is missed for longest.
  EXPECT_GT(gaps.back(), gaps.front());
  EXPECT_EQ(gaps, gaps_of_losses(3, 2, times, 10));
}

TEST(Gap, GrowsWithTheTimeToConnect) {
  WorldTimes times;
  times.step = milliseconds(20);
  const auto usual = gaps_of_losses(3, 2, times, 1);
  times.connect += milliseconds(100);
  EXPECT_EQ(gaps_of_losses(3, 2, times, 1)[0], usual[0] + milliseconds(100));
}

TEST(Gap, NeedsSomebodyWhoStays) {
  EXPECT_THROW((void)gaps_of_losses(1, 2, WorldTimes(), 1), Error);
}

}  // namespace
}  // namespace sherd::sim
