// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_figures.h"

#include <gtest/gtest.h>

namespace sherd::tools::bench {
namespace {

constexpr JobShape kShape{.replicas = 2, .ranks = 1};
constexpr double kLate = 1e9;

// A life that begins, and makes steps at these times.
Life life(int replica, double begin_s, const std::vector<double>& made_s) {
  Life result{.name = {.replica = replica, .rank = 0, .process = 1}};
  result.lines.push_back({.kind = StepKind::kBegun, .time_s = begin_s});
  std::int64_t step = 0;
  for (const double time_s : made_s) {
    result.lines.push_back(
        {.kind = StepKind::kComputed, .step = ++step, .time_s = time_s});
  }
  return result;
}

Kill kill_of(int replica, double time_s) {
  return {.replica = replica, .rank = 0, .time_s = time_s, .usual_s = 1.0};
}

// Replica 1 is killed at 3.5, its processes run again at 6.5; it follows the step
// of 10 and computes that of 11. Replica 0 repeats a reduction until 5.
std::vector<Life> one_kill() {
  auto back = life(1, 6.5, {});
  back.lines.push_back({.kind = StepKind::kReplayed, .step = 7, .time_s = 9.2});
  back.lines.push_back(
      {.kind = StepKind::kFollowed, .step = 8, .time_s = 10.0});
  back.lines.push_back(
      {.kind = StepKind::kComputed, .step = 9, .time_s = 11.0});
  return {
      life(0, 0.0, {1, 2, 3, 5, 6, 7, 8.25, 9.5, 10, 11}),
      life(1, 0.0, {1, 2, 3}), back};
}

TEST(FaultFigures, TheUsualStepIsTheMedianWithinTheTimes) {
  const std::vector<Life> lives = {life(0, 0.0, {1, 2, 3, 13})};

  EXPECT_DOUBLE_EQ(*usual_step_s(lives, 0.0, kLate), 1.0);
  EXPECT_DOUBLE_EQ(*usual_step_s(lives, 2.5, kLate), 10.0);
  EXPECT_FALSE(usual_step_s(lives, 3.5, kLate).has_value());
  EXPECT_FALSE(usual_step_s(lives, 0.0, 1.5).has_value());
}

TEST(FaultFigures, ARankHasComputedWhenItsLastLifeHas) {
  const auto lives = one_kill();

  EXPECT_TRUE(have_computed(lives, kShape, 10.5, 1));
  EXPECT_FALSE(have_computed(lives, kShape, 9.0, 2));  // Once it followed.
  EXPECT_FALSE(have_computed(lives, {.replicas = 3, .ranks = 1}, 10.5, 1));
}

TEST(FaultFigures, TheStepOfAllIsThatOfTheSlowest) {
  auto lives = one_kill();
  EXPECT_EQ(step_of_all(lives, kShape), 9);
  lives.push_back(life(1, 12.0, {}));
  EXPECT_EQ(step_of_all(lives, kShape), 0);
  EXPECT_EQ(step_of_all(lives, {.replicas = 3, .ranks = 1}), 0);
}

TEST(FaultFigures, AStepEndsWhenTheLastRankHasMadeIt) {
  const std::vector<Life> lives = {
      life(0, 0.0, {1, 2, 3}), life(1, 0.0, {1, 2.5, 3})};

  EXPECT_EQ(step_times_ms(lives, 1, 3), (std::vector<double>{1500.0, 500.0}));
  EXPECT_EQ(step_times_ms(lives, 2, 3), std::vector<double>{500.0});
  EXPECT_TRUE(step_times_ms(lives, 3, 5).empty());
}

TEST(FaultFigures, AKillHasAGapAReturnAndAThroughputMeanwhile) {
  const auto figures = figures_of(one_kill(), kill_of(1, 3.5), kShape, kLate);

  EXPECT_DOUBLE_EQ(figures.gap_s, 2.0);
  EXPECT_DOUBLE_EQ(*figures.restart_s, 3.0);
  EXPECT_DOUBLE_EQ(*figures.return_s, 6.5);
  // The steps that ended at 7, 8.25, 9.5 and 10 took 4 s.
  EXPECT_DOUBLE_EQ(*figures.throughput, 1.0);
  EXPECT_EQ(figures.survivors_lost, 0);
}

TEST(FaultFigures, BeforeItIsBackNothingIsKnownOfTheReturn) {
  auto lives = one_kill();
  lives.back().lines.resize(2);  // A replayed step is not the others'.

  EXPECT_FALSE(return_time_s(lives, kill_of(1, 3.5), 1).has_value());
  const auto figures = figures_of(lives, kill_of(1, 3.5), kShape, kLate);
  EXPECT_FALSE(figures.return_s.has_value());
  EXPECT_FALSE(figures.throughput.has_value());
  EXPECT_DOUBLE_EQ(figures.gap_s, 2.0);
}

TEST(FaultFigures, AllRanksOfAReplicaMustBeBack) {
  EXPECT_TRUE(return_time_s(one_kill(), kill_of(1, 3.5), 1).has_value());
  EXPECT_FALSE(return_time_s(one_kill(), kill_of(1, 3.5), 2).has_value());
}

TEST(FaultFigures, TheGapOfOneKillIsNotThatOfAnother) {
  const auto lives = one_kill();
  EXPECT_DOUBLE_EQ(
      figures_of(lives, kill_of(1, 9.6), kShape, kLate).gap_s, 1.0);
  EXPECT_DOUBLE_EQ(figures_of(lives, kill_of(1, 1.5), kShape, 2.5).gap_s, 1.0);
}

TEST(FaultFigures, ThroughputIsUnknownWhenItWasBackWithinTheGap) {
  const std::vector<Life> lives = {
      life(0, 0.0, {1, 2, 4, 5}), life(1, 0.0, {1, 2}), life(1, 2.6, {4, 5})};

  const auto figures = figures_of(lives, kill_of(1, 2.5), kShape, kLate);

  EXPECT_DOUBLE_EQ(*figures.return_s, 1.5);
  EXPECT_FALSE(figures.throughput.has_value());
}

TEST(FaultFigures, OfACoordinatorEverybodySurvives) {
  const std::vector<Life> lives = {
      life(0, 0.0, {1, 2, 3}), life(1, 0.0, {1, 2, 3.5})};

  const auto figures = figures_of(
      lives, {.target = KillTarget::kCoordinator, .time_s = 2.5}, kShape,
      kLate);

  EXPECT_DOUBLE_EQ(figures.gap_s, 1.5);
  EXPECT_FALSE(figures.return_s.has_value());
}

TEST(FaultFigures, ASurvivorThatIsStartedAnewIsCounted) {
  auto lives = one_kill();
  lives.push_back(life(0, 12.0, {}));

  EXPECT_EQ(
      figures_of(lives, kill_of(1, 3.5), kShape, kLate).survivors_lost, 1);
  EXPECT_EQ(figures_of(lives, kill_of(1, 3.5), kShape, 11.5).survivors_lost, 0);
}

TEST(FaultFigures, WhatASurvivorHasComputedInVainIsDiscarded) {
  auto lives = one_kill();
  const StepLine dropped{.kind = StepKind::kDropped, .step = 4, .time_s = 3.75};
  lives[0].lines.push_back(dropped);
  EXPECT_EQ(discarded_steps(lives, {kill_of(1, 3.5)}, kLate), 1);
  // By another rank of the same replica, too.
  auto other = lives[0];
  other.name.rank = 1;
  lives.push_back(other);
  EXPECT_EQ(discarded_steps(lives, {kill_of(1, 3.5)}, kLate), 1);
  EXPECT_EQ(discarded_steps(lives, {kill_of(1, 3.5)}, 3.6), 0);
}

TEST(FaultFigures, WhatTheKilledReplicaHasComputedIsNot) {
  auto lives = one_kill();
  lives[1].lines.push_back(
      {.kind = StepKind::kDropped, .step = 4, .time_s = 3.75});
  EXPECT_EQ(discarded_steps(lives, {kill_of(1, 3.5)}, kLate), 0);
  EXPECT_EQ(discarded_steps(lives, {kill_of(0, 3.5)}, kLate), 1);
}

TEST(FaultFigures, WhatANewcomerComputesBeforeItIsInIsNotEither) {
  auto lives = one_kill();
  auto& lines = lives[2].lines;
  lines.insert(
      lines.begin() + 1,
      {.kind = StepKind::kDropped, .step = 7, .time_s = 9.0});
  EXPECT_EQ(discarded_steps(lives, {kill_of(1, 3.5)}, kLate), 0);
}

TEST(FaultFigures, HashesAreComparedByRankAndStep) {
  auto lives = one_kill();
  lives[0].lines[1].hash = 1;
  EXPECT_EQ(compare_hashes(lives).compared, 0);
  lives[1].lines[1].hash = 1;
  lives[0].lines[2].hash = 2;
  EXPECT_EQ(compare_hashes(lives).compared, 1);
  EXPECT_EQ(compare_hashes(lives).divergences, 0);

  lives[1].lines[2].hash = 3;
  EXPECT_EQ(compare_hashes(lives).compared, 2);
  EXPECT_EQ(compare_hashes(lives).divergences, 1);

  lives[1].name.rank = 1;  // Of another rank: nothing to compare.
  EXPECT_EQ(compare_hashes(lives).compared, 0);
}

}  // namespace
}  // namespace sherd::tools::bench
