// SPDX-License-Identifier: Apache-2.0
#include "ddp/step_timer.h"

#include <gtest/gtest.h>

namespace sherd::ddp {
namespace {

Instant at(int ms) { return std::chrono::milliseconds(ms); }

TEST(StepTimer, T61TimesAreThoseBetweenEvents) {
  StepTimer clock;
  clock.forward_began(at(100));
  clock.gradient_came(at(130));
  clock.gradient_came(at(135));  // The first one counts.
  clock.bucket_left(at(140));
  clock.backward_ended(at(190));
  clock.step_ended(at(200));
  EXPECT_DOUBLE_EQ(clock.last().forward_ms, 30);
  EXPECT_DOUBLE_EQ(clock.last().backward_ms, 60);
  EXPECT_DOUBLE_EQ(clock.last().communication_ms, 60);
  EXPECT_DOUBLE_EQ(clock.last().overlap_ms, 50);
}

TEST(StepTimer, T61BucketsThatWaitForTheEndOverlapNothing) {
  StepTimer clock;
  clock.forward_began(at(0));
  clock.backward_ended(at(10));  // No parameter was reached.
  clock.step_ended(at(14));
  EXPECT_DOUBLE_EQ(clock.last().forward_ms, 10);
  EXPECT_DOUBLE_EQ(clock.last().backward_ms, 0);
  EXPECT_DOUBLE_EQ(clock.last().communication_ms, 4);
  EXPECT_DOUBLE_EQ(clock.last().overlap_ms, 0);
}

TEST(StepTimer, T61MeansAreOfStepsThatCount) {
  StepTimer clock;
  EXPECT_DOUBLE_EQ(clock.mean().backward_ms, 0);
  for (const int length : {10, 20}) {
    clock.forward_began(at(0));
    clock.drop_step();  // The backward failed.
    clock.forward_began(at(100));
    clock.gradient_came(at(100));
    clock.backward_ended(at(100 + length));
    clock.step_ended(at(100 + length));
  }
  EXPECT_DOUBLE_EQ(clock.mean().backward_ms, 15);
  EXPECT_DOUBLE_EQ(clock.mean().forward_ms, 0);
}

}  // namespace
}  // namespace sherd::ddp
