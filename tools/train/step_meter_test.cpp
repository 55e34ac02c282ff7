// SPDX-License-Identifier: Apache-2.0
#include "train/step_meter.h"

#include <poll.h>
#include <gtest/gtest.h>
#include "train/model_flops.h"

namespace sherd::tools {
namespace {

TEST(StepMeter, AThreadWithoutACoreWaitsAsLongAsTheKernelSays) {
  EXPECT_DOUBLE_EQ(core_wait_s("1500000000 250000000 12\n"), 0.25);
  EXPECT_EQ(core_wait_s(""), 0);
  EXPECT_EQ(core_wait_s("none"), 0);
}

TEST(StepMeter, ComputingIsBusyAndWaitingIsNot) {
  const StepMeter meter;
  ::poll(nullptr, 0, /*timeout=*/50);  // On a busy host it may end late.
  const auto waited = meter.measure();
  EXPECT_GE(waited.step_s - waited.busy_s, 0.045);
  EXPECT_GT(waited.rss_bytes, 1 << 20);
  while (meter.measure().busy_s < waited.busy_s + 0.02) {
  }
  EXPECT_GE(meter.measure().step_s, waited.step_s + 0.015);
}

TEST(StepMeter, AStepIsNoLongerBusyThanItLasts) {
  for (int i = 0; i < 10000; ++i) {
    const auto metrics = StepMeter().measure();
    ASSERT_LE(metrics.busy_s, metrics.step_s);
  }
}

TEST(ModelFlops, AreThoseOfPalm) {
  TrainConfig config;
  config.layers = 2;
  config.width = 8;
  config.seq = 16;
  EXPECT_DOUBLE_EQ(
      flops_per_token(config, 1000), 6.0 * 1000 + 12.0 * 2 * 8 * 16);
}

TEST(ModelFlops, UtilisationIsAShareAndUnknownWithoutAPeak) {
  EXPECT_DOUBLE_EQ(*model_flops_utilisation(100, 6000, 1.2e6), 0.5);
  EXPECT_FALSE(model_flops_utilisation(100, 6000, 0).has_value());
}

}  // namespace
}  // namespace sherd::tools
