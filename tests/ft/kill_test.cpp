// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are killed at each point of a step: the others continue with a repeated all-reduce,
// and the killed replica comes back with the same bits.
#include <chrono>
#include <csignal>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/cluster.h"
#include "ft/ring/frame.h"

namespace sherd::ft::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

struct Kill {
  const char* id;
  const char* point;
  ReplicaId replica;
  int rank = 0;
  int ranks = 1;
};

std::string name_of(const ::testing::TestParamInfo<Kill>& tested) {
  return tested.param.id;
}

class FaultsKill : public ::testing::TestWithParam<Kill> {};

// O1 to O6, O8, O9 for all of F01 to F11.
TEST_P(FaultsKill, CostsTheOthersARepeatedReductionAndNoStep) {
  const auto kill = GetParam();
  ClusterOptions options;
  options.ranks = kill.ranks;
  options.restarts = true;
  Cluster cluster(options);
  cluster.kill_at({kill.replica, kill.rank, kill.point, 10});
  cluster.end_behind({.replica = kill.replica});
  const auto outcome = cluster.run();
  std::vector<ReplicaId> survivors;
  for (ReplicaId one = 0; one < 3; ++one) {
    if (one != kill.replica) {
      survivors.push_back(one);
    }
  }
  outcome.check(
      {.survivors = survivors,
       .gap_max = kGap,
       .says = {"replica " + std::to_string(kill.replica)}});
  // It has come back, and its second incarnation ended well.
  const auto lives = outcome.lives_of(kill.replica);
  ASSERT_EQ(lives.size(), 2U * static_cast<std::size_t>(kill.ranks));
  EXPECT_TRUE(lives.back()->done) << lives.back()->failure;
  EXPECT_TRUE(outcome.committed_with(kill.replica, lives.back()->incarnation));
}

INSTANTIATE_TEST_SUITE_P(
    Points,
    FaultsKill,
    ::testing::Values(
        Kill{"F01Idle", "idle", 0},
        Kill{"F02Forward", "forward", 1},
        Kill{"F03Backward", "backward", 2},
        Kill{"F03Gradients", "gradients", 0},
        Kill{"F04Reducing", "reducing", 1},
        Kill{"F04Given", "given", 2},
        Kill{"F06Reduced", "reduced", 0},
        Kill{"F07Voted", "voted", 1},
        Kill{"F08Committed", "committed", 2},
        Kill{"F09Update", "update", 0},
        Kill{"F09Applied", "applied", 1},
        Kill{"F10LeaderInForward", "forward", 0, 0, 2},
        Kill{"F10LeaderReduced", "reduced", 1, 0, 2},
        Kill{"F10LeaderInUpdate", "update", 2, 0, 2},
        Kill{"F11OtherInBackward", "backward", 2, 1, 2},
        Kill{"F11OtherReduced", "reduced", 0, 1, 2},
        Kill{"F11OtherInUpdate", "update", 1, 1, 2}),
    name_of);

// ---- while some replicas have the sum and others do not ----

struct GatherKill {
  int replicas;
  ReplicaId victim;
};

// How much a member has sent to its neighbour when only the last byte of this step's sum is missing
// there: a hello, and each step's frames, in both directions.
std::int64_t bytes_before_the_end(
    const ClusterOptions& options, std::int64_t step) {
  const std::int64_t hops = 2 * (options.replicas - 1);
  std::int64_t of_step = 0;
  for (const auto elements : options.buckets) {
    const std::int64_t segment = elements / options.replicas * 4;
    of_step += hops * (static_cast<std::int64_t>(ring::kHeaderBytes) + segment);
  }
  const auto hello = ring::frame_of(Epoch(), ring::Handshake()).size();
  return static_cast<std::int64_t>(hello) + step * of_step - 1;
}

class FaultsGather : public ::testing::TestWithParam<GatherKill> {};

// The neighbour after the victim lacks the end of the sum; all others have it.
TEST_P(FaultsGather, F05KilledWhenSomeHaveTheSumThereIsOneDecision) {
  const auto [replicas, victim] = GetParam();
  constexpr std::int64_t kStep = 10;
  ClusterOptions options;
  options.replicas = replicas;
  options.buckets = {1500, 2508};  // All segments have the same size.
  options.links = true;
  options.restarts = true;
  Cluster cluster(options);
  const auto count = static_cast<ReplicaId>(replicas);
  const ReplicaId next = (victim + 1) % count;
  cluster.link(victim, next)
      .set(
          sherd::test::Direction::kToTarget,
          {.black_hole_after = bytes_before_the_end(options, kStep),
           .strikes_max = 1});
  cluster.end_behind({.replica = victim});
  int have = 0;
  bool next_had_it = false;
  std::vector<ReplicaId> survivors;
  for (ReplicaId one = 0; one < count; ++one) {
    if (one == victim) {
      continue;
    }
    survivors.push_back(one);
    cluster.at({.replica = one, .point = "reduced", .step = kStep}, [&, one] {
      have += one == next ? 0 : 1;
      next_had_it = next_had_it || (one == next && have < replicas - 2);
      if (one != next && have == replicas - 2) {
        EXPECT_TRUE(cluster.link(victim, next).wait_for([](const auto& now) {
          return now.strikes[0] == 1;
        }));
        cluster.signal_all(victim, SIGKILL);
        cluster.heal();
      }
      return std::string();
    });
  }
  const auto outcome = cluster.run();
  outcome.check({.survivors = survivors, .gap_max = kGap});
  EXPECT_EQ(have, replicas - 2);
  EXPECT_FALSE(next_had_it);
  EXPECT_EQ(outcome.rollbacks(), 0);
  EXPECT_TRUE(outcome.lives_of(victim).back()->done);
}

INSTANTIATE_TEST_SUITE_P(
    Victims,
    FaultsGather,
    ::testing::Values(
        GatherKill{3, 0},
        GatherKill{3, 1},
        GatherKill{3, 2},
        GatherKill{4, 0},
        GatherKill{4, 1},
        GatherKill{4, 3}),
    [](const auto& tested) {
      return "Replica" + std::to_string(tested.param.victim) + "Of" +
          std::to_string(tested.param.replicas);
    });

// ---- several kills ----

TEST(FaultsKilled, F02NobodyElseIsNamedWhenOneHasDiedAndComeBack) {
  ClusterOptions options;
  options.restarts = true;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "reducing", .step = 10});
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2}, .gap_max = kGap, .says = {"replica 1: "}});
  EXPECT_THAT(outcome.coordinator, Not(HasSubstr("replica 0: ")));
  EXPECT_THAT(outcome.coordinator, Not(HasSubstr("replica 2: ")));
}

// A replica that has the sum dies before another one has it. If the step had been committed with
// that one alone, nothing would have gone on for a minute, and the step would have been rolled
// back.
TEST(FaultsKilled, F13TheOnlyHolderOfASumDiesBeforeTheOthersHaveIt) {
  Cluster cluster({.steps = 40});
  cluster.order_at({.replica = 2, .point = "reduced", .step = 10}, "sleep 150");
  cluster.at({.replica = 0, .point = "voted", .step = 10}, [&] {
    cluster.signal_all(1, SIGKILL);
    cluster.after(milliseconds(70), [&] { cluster.signal_all(0, SIGKILL); });
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {2}, .gap_max = 2 * kGap});
  EXPECT_EQ(outcome.rollbacks(), 0);
}

TEST(FaultsKilled, F12TwoAtOnceInReduceCostAFewEpochs) {
  Cluster cluster({.replicas = 4, .steps = 40});
  cluster.at({.replica = 1, .point = "reducing", .step = 10}, [&] {
    cluster.signal_all(1, SIGKILL);
    cluster.signal_all(2, SIGKILL);
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 3}, .gap_max = kGap});
  // The first epoch, one without each, and one more for each whose neighbour was suspected before
  // its own connection was lost.
  EXPECT_LE(outcome.epochs(), 5);
  EXPECT_EQ(outcome.members_at(11), 2);
}

// More members than a ring can have reduce in trees. Sixteen are left, which form a ring.
TEST(FaultsKilled, OfEighteenTwoAtOnceLeaveARingAndComeBackIntoTrees) {
  ClusterOptions options;
  options.replicas = 18;
  options.restarts = true;
  // Behind the first step without both, which a slow machine commits late.
  options.restart_after = milliseconds(2000);
  Cluster cluster(options);
  cluster.at({.replica = 1, .point = "reducing", .step = 10}, [&] {
    cluster.signal_all(1, SIGKILL);
    cluster.signal_all(7, SIGKILL);
    return std::string();
  });
  cluster.end_behind({.replica = 1});
  cluster.end_behind({.replica = 7});
  const auto outcome = cluster.run();
  std::vector<ReplicaId> survivors;
  for (ReplicaId one = 0; one < 18; ++one) {
    if (one != 1 && one != 7) {
      survivors.push_back(one);
    }
  }
  outcome.check({.survivors = survivors, .gap_max = 2 * kGap});
  EXPECT_EQ(outcome.members_at(9), 18);
  EXPECT_EQ(outcome.members_at(11), 16);
  for (const ReplicaId one : {1U, 7U}) {
    const auto lives = outcome.lives_of(one);
    ASSERT_EQ(lives.size(), 2U);
    EXPECT_TRUE(outcome.committed_with(one, lives.back()->incarnation));
  }
}

TEST(FaultsKilled, F13OneMoreDuringTheEpochChange) {
  Cluster cluster({.replicas = 4, .steps = 40});
  cluster.kill_at({.replica = 1, .point = "backward", .step = 10});
  // The second epoch is the response to the first kill, or the third, if a neighbour was suspected
  // first.
  for (const std::int64_t epoch : {2, 3}) {
    cluster.kill_at({.replica = 2, .point = "joined", .step = epoch});
  }
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 3}, .gap_max = 2 * kGap});
  EXPECT_LE(outcome.epochs(), 5);
  EXPECT_EQ(outcome.members_at(40), 2);
}

TEST(FaultsKilled, F14AllButTheMinimum) {
  Cluster cluster({.replicas = 4, .steps = 40});
  cluster.when_held(10, [&] {
    for (const ReplicaId one : {0U, 1U, 3U}) {
      cluster.signal_all(one, SIGKILL);
    }
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {2}, .gap_max = kGap});
  EXPECT_EQ(outcome.members_at(40), 1);
}

TEST(FaultsKilled, F15BelowTheMinimumNothingIsCommittedUntilOneIsBack) {
  ClusterOptions options;
  options.steps = 40;
  options.restarts = true;
  options.restart_after = milliseconds(1000);
  options.coordinator.replicas_min = 3;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "gradients", .step = 10});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = options.restart_after + std::chrono::seconds(2),
       .replicas_min = 3});
  EXPECT_GE(outcome.longest_gap({0, 2}), options.restart_after);
}

TEST(FaultsKilled, F16AllOfThemAndTheRunGoesBackToWhatThereIs) {
  ClusterOptions options;
  options.steps = 20;
  options.restarts = true;
  options.coordinator.hold_time = milliseconds(500);
  Cluster cluster(options);
  cluster.at({.replica = 0, .point = "backward", .step = 11}, [&] {
    for (ReplicaId one = 0; one < 3; ++one) {
      cluster.signal_all(one, SIGKILL);
    }
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.says = {"nobody has held step"}});
  EXPECT_EQ(outcome.rollbacks(), 1);
}

TEST(FaultsKilled, F17OneInDoubtWithTheSumBecomesAHolder) {
  ClusterOptions options;
  options.steps = 30;
  options.restarts = true;
  options.restart_after = milliseconds(300);
  options.links = true;
  Cluster cluster(options);
  // Replica 2 votes and does not learn the outcome.
  cluster.at({.replica = 2, .point = "reducing", .step = 10}, [&] {
    cluster.coordinator_link(2).set(
        sherd::test::Direction::kToClient, {.paused = true});
    return std::string();
  });
  for (const ReplicaId one : {0U, 1U}) {
    cluster.at({.replica = one, .point = "committed", .step = 10}, [&] {
      cluster.signal_all(0, SIGKILL);
      cluster.signal_all(1, SIGKILL);
      cluster.after(milliseconds(100), [&] { cluster.heal(); });
      return std::string();
    });
  }
  const auto outcome = cluster.run();
  outcome.check({.survivors = {2}, .gap_max = kGap + milliseconds(400)});
  EXPECT_EQ(outcome.rollbacks(), 0);
}

// ---- other kinds of ends ----

class FaultsEnd : public ::testing::TestWithParam<const char*> {};

TEST_P(FaultsEnd, F55AnyOtherEndIsADeathToo) {
  ClusterOptions options;
  options.steps = 40;
  options.restarts = true;
  Cluster cluster(options);
  cluster.order_at({.replica = 1, .point = "backward", .step = 10}, GetParam());
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kGap,
       .says = {"warning: [ft] replica 1: "}});
  EXPECT_EQ(outcome.lives_of(1).size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(
    Orders,
    FaultsEnd,
    ::testing::Values("exit", "segv", "abort", "throw"),
    [](const auto& tested) { return std::string(tested.param); });

TEST(FaultsKilled, F61AProgramThatThrowsEndsItsReplicaWithItsText) {
  Cluster cluster({.steps = 30});
  cluster.order_at({.replica = 1, .point = "update", .step = 10}, "throw");
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  EXPECT_EQ(
      outcome.lives_of(1).front()->failure,
      "[toy] the user's program has failed");
}

// There is no launcher that ends them.
TEST(FaultsKilled, F10SiblingsEndByThemselvesInTime) {
  for (const int rank : {0, 1}) {
    Cluster cluster({.ranks = 2, .steps = 30, .ends_siblings = false});
    cluster.kill_at(
        {.replica = 1, .rank = rank, .point = "backward", .step = 9});
    const auto outcome = cluster.run();
    outcome.check({.survivors = {0, 2}, .gap_max = kGap});
    for (const auto* life : outcome.lives_of(1)) {
      EXPECT_LT(life->ended_at - outcome.struck_at, std::chrono::seconds(10));
      EXPECT_NE(life->exit_code, 0);
    }
  }
}

}  // namespace
}  // namespace sherd::ft::test
