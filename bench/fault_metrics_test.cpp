// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_metrics.h"

#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

constexpr JobShape kShape{.replicas = 2, .ranks = 1};
constexpr double kLate = 1e9;

// An incarnation that begins, and makes steps at these times.
StepLog log(int replica, double begin_s, const std::vector<double>& made_s) {
  StepLog result{.replica = replica, .rank = 0, .process = 1};
  result.lines.push_back({.kind = StepEvent::Kind::kBegun, .time_s = begin_s});
  std::int64_t step = 0;
  for (const double time_s : made_s) {
    result.lines.push_back(
        {.kind = StepEvent::Kind::kComputed, .step = ++step, .time_s = time_s});
  }
  return result;
}

InjectedKill kill_of(int replica, double time_s) {
  return {.replica = replica, .rank = 0, .time_s = time_s, .usual_s = 1.0};
}

// Replica 1 is killed at 3.5 and its processes run again at 6.5; it follows step 10 and computes
// step 11. Replica 0 repeats a reduction until 5.
std::vector<StepLog> one_kill() {
  auto back = log(1, 6.5, {});
  back.lines.push_back(
      {.kind = StepEvent::Kind::kReplayed, .step = 7, .time_s = 9.2});
  back.lines.push_back(
      {.kind = StepEvent::Kind::kFollowed, .step = 8, .time_s = 10.0});
  back.lines.push_back(
      {.kind = StepEvent::Kind::kComputed, .step = 9, .time_s = 11.0});
  return {
      log(0, 0.0, {1, 2, 3, 5, 6, 7, 8.25, 9.5, 10, 11}),
      log(1, 0.0, {1, 2, 3}), back};
}

TEST(FaultMetrics, TheUsualStepIsTheMedianWithinTheTimes) {
  const std::vector<StepLog> logs = {log(0, 0.0, {1, 2, 3, 13})};

  EXPECT_DOUBLE_EQ(*usual_step_s(logs, 0.0, kLate), 1.0);
  EXPECT_DOUBLE_EQ(*usual_step_s(logs, 2.5, kLate), 10.0);
  EXPECT_FALSE(usual_step_s(logs, 3.5, kLate).has_value());
  EXPECT_FALSE(usual_step_s(logs, 0.0, 1.5).has_value());
}

TEST(FaultMetrics, ARankHasComputedWhenItsLastLifeHas) {
  const auto logs = one_kill();

  EXPECT_TRUE(have_computed(logs, kShape, 10.5, 1));
  EXPECT_FALSE(have_computed(logs, kShape, 9.0, 2));  // It followed once.
  EXPECT_FALSE(have_computed(logs, {.replicas = 3, .ranks = 1}, 10.5, 1));
}

TEST(FaultMetrics, TheStepOfAllIsThatOfTheSlowest) {
  auto logs = one_kill();
  EXPECT_EQ(step_of_all(logs, kShape), 9);
  logs.push_back(log(1, 12.0, {}));
  EXPECT_EQ(step_of_all(logs, kShape), 0);
  EXPECT_EQ(step_of_all(logs, {.replicas = 3, .ranks = 1}), 0);
}

TEST(FaultMetrics, AStepEndsWhenTheLastRankHasMadeIt) {
  const std::vector<StepLog> logs = {
      log(0, 0.0, {1, 2, 3}), log(1, 0.0, {1, 2.5, 3})};

  EXPECT_EQ(step_times_ms(logs, 1, 3), (std::vector<double>{1500.0, 500.0}));
  EXPECT_EQ(step_times_ms(logs, 2, 3), std::vector<double>{500.0});
  EXPECT_TRUE(step_times_ms(logs, 3, 5).empty());
}

TEST(FaultMetrics, AKillHasAGapAReturnAndAThroughputMeanwhile) {
  const auto metrics = metrics_of(one_kill(), kill_of(1, 3.5), kShape, kLate);

  EXPECT_DOUBLE_EQ(metrics.gap_s, 2.0);
  EXPECT_DOUBLE_EQ(*metrics.restart_s, 3.0);
  EXPECT_DOUBLE_EQ(*metrics.return_s, 6.5);
  // The steps that ended at 7, 8.25, 9.5 and 10 took 4 s.
  EXPECT_DOUBLE_EQ(*metrics.throughput, 1.0);
  EXPECT_DOUBLE_EQ(metrics.into_step_s, 0.5);
  EXPECT_EQ(metrics.survivors_lost, 0);
}

TEST(FaultMetrics, BeforeItIsBackNothingIsKnownOfTheReturn) {
  auto logs = one_kill();
  // A replayed step does not count as one of the others.
  logs.back().lines.resize(2);

  EXPECT_FALSE(return_time_s(logs, kill_of(1, 3.5), 1).has_value());
  const auto metrics = metrics_of(logs, kill_of(1, 3.5), kShape, kLate);
  EXPECT_FALSE(metrics.return_s.has_value());
  EXPECT_FALSE(metrics.throughput.has_value());
  EXPECT_DOUBLE_EQ(metrics.gap_s, 2.0);
}

TEST(FaultMetrics, AllRanksOfAReplicaMustBeBack) {
  EXPECT_TRUE(return_time_s(one_kill(), kill_of(1, 3.5), 1).has_value());
  EXPECT_FALSE(return_time_s(one_kill(), kill_of(1, 3.5), 2).has_value());
}

TEST(FaultMetrics, TheGapOfOneKillIsNotThatOfAnother) {
  const auto logs = one_kill();
  EXPECT_DOUBLE_EQ(metrics_of(logs, kill_of(1, 9.6), kShape, kLate).gap_s, 1.0);
  EXPECT_DOUBLE_EQ(metrics_of(logs, kill_of(1, 1.5), kShape, 2.5).gap_s, 1.0);
}

TEST(FaultMetrics, ThroughputIsUnknownWhenItWasBackWithinTheGap) {
  const std::vector<StepLog> logs = {
      log(0, 0.0, {1, 2, 4, 5}), log(1, 0.0, {1, 2}), log(1, 2.6, {4, 5})};

  const auto metrics = metrics_of(logs, kill_of(1, 2.5), kShape, kLate);

  EXPECT_DOUBLE_EQ(*metrics.return_s, 1.5);
  EXPECT_FALSE(metrics.throughput.has_value());
}

TEST(FaultMetrics, OfACoordinatorEverybodySurvives) {
  const std::vector<StepLog> logs = {
      log(0, 0.0, {1, 2, 3}), log(1, 0.0, {1, 2, 3.5})};

  const auto metrics = metrics_of(
      logs, {.target = InjectedKill::Target::kCoordinator, .time_s = 2.5},
      kShape, kLate);

  EXPECT_DOUBLE_EQ(metrics.gap_s, 1.5);
  EXPECT_FALSE(metrics.return_s.has_value());
}

TEST(FaultMetrics, ASurvivorThatIsStartedAnewIsCounted) {
  auto logs = one_kill();
  logs.push_back(log(0, 12.0, {}));

  EXPECT_EQ(metrics_of(logs, kill_of(1, 3.5), kShape, kLate).survivors_lost, 1);
  EXPECT_EQ(metrics_of(logs, kill_of(1, 3.5), kShape, 11.5).survivors_lost, 0);
}

TEST(FaultMetrics, WhatASurvivorHasComputedInVainIsDiscarded) {
  auto logs = one_kill();
  const StepEvent dropped{
      .kind = StepEvent::Kind::kDropped, .step = 4, .time_s = 3.75};
  logs[0].lines.push_back(dropped);
  EXPECT_EQ(discarded_steps(logs, {kill_of(1, 3.5)}, kLate), 1);
  // Another rank of the same replica may have made it, too.
  auto other = logs[0];
  other.rank = 1;
  logs.push_back(other);
  EXPECT_EQ(discarded_steps(logs, {kill_of(1, 3.5)}, kLate), 1);
  EXPECT_EQ(discarded_steps(logs, {kill_of(1, 3.5)}, 3.6), 0);
}

TEST(FaultMetrics, WhatTheKilledReplicaHasComputedIsNot) {
  auto logs = one_kill();
  logs[1].lines.push_back(
      {.kind = StepEvent::Kind::kDropped, .step = 4, .time_s = 3.75});
  EXPECT_EQ(discarded_steps(logs, {kill_of(1, 3.5)}, kLate), 0);
  EXPECT_EQ(discarded_steps(logs, {kill_of(0, 3.5)}, kLate), 1);
}

TEST(FaultMetrics, WhatANewcomerComputesBeforeItIsInIsNotEither) {
  auto logs = one_kill();
  auto& lines = logs[2].lines;
  lines.insert(
      lines.begin() + 1,
      {.kind = StepEvent::Kind::kDropped, .step = 7, .time_s = 9.0});
  EXPECT_EQ(discarded_steps(logs, {kill_of(1, 3.5)}, kLate), 0);
}

TEST(FaultMetrics, HashesAreComparedByRankAndStep) {
  auto logs = one_kill();
  logs[0].lines[1].hash = 1;
  EXPECT_EQ(compare_hashes(logs).compared, 0);
  logs[1].lines[1].hash = 1;
  logs[0].lines[2].hash = 2;
  EXPECT_EQ(compare_hashes(logs).compared, 1);
  EXPECT_EQ(compare_hashes(logs).divergences, 0);

  logs[1].lines[2].hash = 3;
  EXPECT_EQ(compare_hashes(logs).compared, 2);
  EXPECT_EQ(compare_hashes(logs).divergences, 1);

  logs[1].rank = 1;  // There is nothing to compare for another rank.
  EXPECT_EQ(compare_hashes(logs).compared, 0);
}

}  // namespace
}  // namespace sherd::bench
