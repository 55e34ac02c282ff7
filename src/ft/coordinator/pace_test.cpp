// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/pace.h"

#include <gtest/gtest.h>

#include "ft/coordinator/awake_clock.h"

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Pace, OfEvenStepsAllTimeIsEffective) {
  Pace pace;
  EXPECT_FALSE(pace.effective(seconds(1)).has_value());
  for (int i = 0; i <= 100; ++i) {
    pace.committed(milliseconds(500) * i);
  }
  EXPECT_DOUBLE_EQ(*pace.effective(seconds(50)), 1);
  EXPECT_DOUBLE_EQ(pace.steps_per_s(seconds(50)), 2);
  EXPECT_EQ(pace.commits(), 101);
}

TEST(Pace, OfAStallOneUsualStepCounts) {
  Pace pace;
  for (int i = 0; i <= 10; ++i) {
    pace.committed(seconds(i));
  }
  pace.committed(seconds(20));  // After 10 s instead of 1 s.
  EXPECT_DOUBLE_EQ(*pace.effective(seconds(20)), 11.0 / 20);
  EXPECT_EQ(pace.longest_gap(seconds(20)), seconds(10));
  pace.committed(seconds(21));
  EXPECT_EQ(pace.longest_gap(seconds(21)), seconds(10));
}

TEST(Pace, AStallThatLastsCountsToo) {
  Pace pace;
  for (int i = 0; i <= 10; ++i) {
    pace.committed(seconds(i));
  }
  EXPECT_DOUBLE_EQ(*pace.effective(seconds(12)), 1);
  EXPECT_DOUBLE_EQ(*pace.effective(seconds(22)), 11.0 / 22);
  EXPECT_EQ(pace.longest_gap(seconds(22)), seconds(12));
  EXPECT_LT(pace.steps_per_s(seconds(22)), 0.5);
}

TEST(Pace, CommitsOfOneInstantAreNoReasonToDivideByZero) {
  Pace pace;
  pace.committed(seconds(1));
  pace.committed(seconds(1));
  EXPECT_GT(pace.steps_per_s(seconds(1)), 0);
  EXPECT_FALSE(pace.effective(seconds(1)).has_value());
}

class InventedClock final : public Clock {
 public:
  Instant now() const override { return now_; }
  void set(Instant now) { now_ = now; }

 private:
  Instant now_ = seconds(1000);
};

TEST(AwakeClock, TimeInWhichItWasNotReadDoesNotPass) {
  InventedClock clock;
  const AwakeClock awake(clock, milliseconds(200));
  const Instant start = awake.now();
  clock.set(seconds(1000) + milliseconds(150));
  EXPECT_EQ(awake.now() - start, milliseconds(150));
  clock.set(seconds(1005) + milliseconds(150));
  EXPECT_EQ(awake.now() - start, milliseconds(350));
  EXPECT_EQ(awake.slept(), milliseconds(4800));
  clock.set(seconds(1005) + milliseconds(160));
  EXPECT_EQ(awake.now() - start, milliseconds(360));
}

}  // namespace
}  // namespace sherd::ft
