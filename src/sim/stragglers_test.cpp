// SPDX-License-Identifier: Apache-2.0
#include "sim/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::sim {
namespace {

using std::chrono::minutes;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Eight hosts, one of which becomes slow each hour.
SimulationOptions hourly() {
  SimulationOptions options;
  options.gpus = 64;
  options.replicas = 4;
  options.step_s = 1;
  options.days = 1;
  options.mtbf_min = 1e6;
  options.arrivals = Arrivals::kEven;
  options.stragglers_per_1000_host_days = 3000;
  options.straggler_factor = 2;
  options.straggler_min = 30;
  return options;
}

TEST(Stragglers, ComeEvenlyInTurn) {
  const auto all = stragglers_of(hourly(), 1);
  ASSERT_THAT(all, SizeIs(24));
  EXPECT_EQ(all[5].from, Instant(minutes(300)));
  EXPECT_EQ(all[5].until, Instant(minutes(330)));
  EXPECT_EQ(all[5].replica, 1);
  EXPECT_THAT(slow_at(all, Instant(minutes(329))), ElementsAre(1));
  EXPECT_THAT(slow_at(all, Instant(minutes(330))), IsEmpty());
  auto none = hourly();
  none.stragglers_per_1000_host_days = 0;
  EXPECT_THAT(stragglers_of(none, 1), IsEmpty());
}

TEST(Stragglers, TimesThatOverlapCountOnce) {
  const auto at = [](int time) { return Instant(minutes(time)); };
  const std::vector<Straggler> all = {
      {at(0), at(30), 0}, {at(20), at(50), 1}, {at(60), at(90), 0}};
  EXPECT_EQ(slow_time(all, at(0), at(100)), minutes(80));
  EXPECT_EQ(slow_time(all, at(25), at(70)), minutes(35));
  EXPECT_EQ(slow_time(all, at(50), at(60)), minutes(0));
  EXPECT_THAT(slow_at(all, at(25)), ElementsAre(0, 1));
}

// Steps take twice as long for half of the time: 1/2 + 1/2 * 1/2, less the cost of the failure at
// the beginning.
TEST(Stragglers, AllWaitForOneUnderEachPolicy) {
  for (const auto policy :
       {FailurePolicy::kRestart, FailurePolicy::kTorchft,
        FailurePolicy::kSherd}) {
    auto options = hourly();
    options.policy = policy;
    options.down_min = 1;
    EXPECT_NEAR(simulate(options).effective_training_time, 0.75, 0.003);
    options.straggler_factor = 1;
    EXPECT_NEAR(simulate(options).effective_training_time, 1, 0.003);
  }
}

TEST(Stragglers, StepsMadeAsOneGiveTheSame) {
  auto options = hourly();
  options.arrivals = Arrivals::kPoisson;
  options.mtbf_min = 60;
  options.runs = 2;
  const auto few = simulate(options);
  options.every_step = true;
  EXPECT_DOUBLE_EQ(
      few.effective_training_time, simulate(options).effective_training_time);
}

TEST(Stragglers, OptionsWithoutSenseAreRefused) {
  auto faster = hourly();
  faster.straggler_factor = 0.5;
  EXPECT_THROW((void)simulate(faster), Error);
  auto never = hourly();
  never.straggler_min = 0;
  EXPECT_THROW((void)simulate(never), Error);
  auto many = hourly();
  many.stragglers_per_1000_host_days = 1e12;
  EXPECT_THROW((void)simulate(many), Error);
}

}  // namespace
}  // namespace sherd::sim
