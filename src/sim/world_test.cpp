// SPDX-License-Identifier: Apache-2.0
#include "sim/world.h"

#include <algorithm>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// Three replicas with steps of two seconds, one after the other.
class SmallWorld : public ::testing::Test {
 protected:
  SmallWorld() {
    // The invariants, checked after each event.
    world_.set_after_event(
        [this](const SimulatedWorld& world) { check(world); });
    for (ft::ReplicaId replica = 0; replica < 3; ++replica) {
      world_.start(replica, SimulatedWorld::first_state());
    }
    pass(minutes(1));
  }

  static SimulatedWorldOptions options() {
    SimulatedWorldOptions options;
    options.replicas = 3;
    options.ranks_per_replica = 2;
    options.times.step = seconds(2);
    options.times.reduce = milliseconds(200);
    options.coordinator.replicas_start = 3;
    options.coordinator.recovers = true;
    options.every_step = true;
    return options;
  }

  void check(const SimulatedWorld& world) {
    for (ft::ReplicaId replica = 0; replica < 3; ++replica) {
      const auto* machine = world.replica(replica);
      if (machine != nullptr && machine->held() && machine->held()->step > 0) {
        EXPECT_TRUE(
            *machine->held() == SimulatedWorld::first_state() ||
            world.log().knows(*machine->held()))
            << "replica " << replica << " holds what was never committed";
      }
    }
  }

  void pass(Duration time) { world_.run_until(world_.now() + time); }
  std::int64_t steps() { return world_.progress().steps; }
  double work() { return world_.progress().work; }
  // How many steps are committed in that time.
  std::int64_t steps_in(Duration time) {
    const auto before = steps();
    pass(time);
    return steps() - before;
  }
  std::size_t members() const { return world_.log().members.size(); }
  std::int64_t epochs() { return world_.progress().epochs; }

  SimulatedWorld world_{options()};
};

TEST_F(SmallWorld, MakesAStepInTheTimeOfAStep) {
  EXPECT_EQ(members(), 3U);
  EXPECT_EQ(steps_in(minutes(1)), 30);
  EXPECT_EQ(work(), static_cast<double>(steps()));
  EXPECT_EQ(epochs(), 1);
}

TEST_F(SmallWorld, ALostReplicaCostsTheOthersAReductionAndNoStep) {
  world_.lose(1, FailureKind::kProcess);
  // 30 ms to settle, 50 ms to connect; the sum is repeated in 200 ms.
  EXPECT_GE(steps_in(minutes(1)), 29);
  EXPECT_EQ(members(), 2U);
  EXPECT_EQ(epochs(), 2);
  EXPECT_EQ(world_.progress().rolled_back, 0);
}

TEST_F(SmallWorld, AReplicaThatComesBackStopsNobody) {
  world_.lose(1, FailureKind::kProcess);
  pass(minutes(1));
  const auto before = work();
  world_.start(1);
  EXPECT_EQ(steps_in(minutes(1)), 30);
  EXPECT_EQ(members(), 3U);
  EXPECT_GT(work() - before, 28);  // It follows for a step or two.
}

TEST_F(SmallWorld, ASilentReplicaIsLostAfterASecond) {
  world_.lose(2, FailureKind::kHost);
  pass(milliseconds(900));
  EXPECT_EQ(members(), 3U);
  pass(milliseconds(500));
  EXPECT_EQ(members(), 2U);
  EXPECT_GE(steps_in(minutes(1)), 29);
}

// Ten times the two seconds of a step.
TEST_F(SmallWorld, AHungReplicaIsFoundByItsProgressAndNotItsNeighbours) {
  world_.lose(0, FailureKind::kHang);
  EXPECT_EQ(steps_in(seconds(15)), 0);
  pass(seconds(10));
  EXPECT_FALSE(world_.runs(0));
  EXPECT_TRUE(world_.runs(1));
  EXPECT_TRUE(world_.runs(2));
  EXPECT_EQ(members(), 2U);
  EXPECT_GE(steps_in(minutes(1)), 29);
}

TEST_F(SmallWorld, ALinkThatBreaksOnceCostsNobodyHisPlace) {
  world_.reset_link(0, 1);
  EXPECT_GE(steps_in(minutes(1)), 29);
  EXPECT_EQ(members(), 3U);
  EXPECT_EQ(epochs(), 2);
}

TEST_F(SmallWorld, AConnectionToTheCoordinatorThatIsResetCostsNobodyHisPlace) {
  world_.reset_connection(1);
  EXPECT_GE(steps_in(minutes(1)), 28);
  EXPECT_EQ(members(), 3U);
  EXPECT_EQ(epochs(), 3);  // Two go on, and the third follows when it is back.
}

TEST_F(SmallWorld, AHungReplicaIsFoundByACoordinatorThatWasAwayMeanwhile) {
  world_.lose_coordinator(seconds(3));
  world_.lose(0, FailureKind::kHang);
  pass(minutes(1));
  EXPECT_FALSE(world_.runs(0));
  EXPECT_EQ(members(), 2U);
}

TEST_F(SmallWorld, ParametersAreMadeFromWhatTheirNameSays) {
  world_.lose(1, FailureKind::kProcess);
  pass(seconds(5));
  world_.start(1);
  pass(minutes(1));
  for (ft::ReplicaId replica = 0; replica < 3; ++replica) {
    EXPECT_EQ(
        world_.parameters(replica), world_.replica(replica)->held()->lineage);
  }
}

TEST_F(SmallWorld, ACoordinatorThatComesBackGoesOnWithItsLog) {
  world_.lose_coordinator(seconds(3));
  pass(seconds(1));
  EXPECT_EQ(world_.coordinator(), nullptr);
  EXPECT_GE(steps_in(minutes(1)), 27);
  EXPECT_EQ(members(), 3U);
  EXPECT_EQ(world_.log().term, 2U);
}

TEST_F(SmallWorld, AStallStopsTrainingAndNothingElse) {
  world_.stall(seconds(30));
  EXPECT_LE(steps_in(seconds(30)), 1);
  EXPECT_GE(steps_in(seconds(30)), 14);
  // The later of both ends counts.
  world_.stall(seconds(10));
  pass(seconds(5));
  world_.stall(seconds(10));
  EXPECT_EQ(steps_in(seconds(9)), 0);
  EXPECT_EQ(steps_in(seconds(21)), 10);
}

TEST_F(SmallWorld, WhoLeavesFinishesItsStep) {
  world_.leave(1);
  EXPECT_GE(steps_in(minutes(1)), 28);
  EXPECT_EQ(members(), 2U);
}

TEST_F(SmallWorld, LostAndRepeatedMessagesCostTimeOnly) {
  int sent = 0;
  world_.set_delivery(
      [&](const SimulatedWorld::Envelope&) -> std::vector<Duration> {
        // Every fifth message is repeated, the second time late.
        return ++sent % 5 == 0
            ? std::vector<Duration>{Duration(0), milliseconds(30)}
            : std::vector<Duration>{Duration(0)};
      });
  EXPECT_GE(steps_in(minutes(1)), 29);
  EXPECT_EQ(members(), 3U);
}

TEST_F(SmallWorld, ASlowReplicaMakesAllStepsSlow) {
  world_.set_slowdown(2, 2);
  pass(seconds(10));
  EXPECT_NEAR(static_cast<double>(steps_in(minutes(2))), 30, 1);
}

TEST_F(SmallWorld, AllReplicasLostGoBackToWhatTheyBring) {
  const auto early = SimulatedWorld::first_state();
  for (ft::ReplicaId replica = 0; replica < 3; ++replica) {
    world_.lose(replica, FailureKind::kProcess);
  }
  pass(minutes(1));
  const auto made = steps();
  for (ft::ReplicaId replica = 0; replica < 3; ++replica) {
    world_.start(replica, early);
  }
  pass(seconds(20));
  EXPECT_EQ(members(), 3U);
  EXPECT_EQ(world_.progress().rolled_back, made);
  EXPECT_GT(steps(), 0);
  EXPECT_LT(steps(), made);
}

// More replicas than a ring can have.
class LargeWorld : public ::testing::Test {
 protected:
  static constexpr ft::ReplicaId kReplicas = 20;

  LargeWorld() {
    for (ft::ReplicaId replica = 0; replica < kReplicas; ++replica) {
      world_.start(replica, SimulatedWorld::first_state());
    }
    world_.run_until(world_.now() + minutes(1));
  }
  static SimulatedWorldOptions options() {
    SimulatedWorldOptions options;
    options.replicas = kReplicas;
    options.times.step = seconds(2);
    options.coordinator.replicas_start = kReplicas;
    options.coordinator.recovers = true;
    options.every_step = true;
    return options;
  }
  std::size_t members() const { return world_.log().members.size(); }
  bool is_member(ft::ReplicaId replica) const {
    const auto& all = world_.log().members;
    return std::any_of(all.begin(), all.end(), [&](const ft::Member& one) {
      return one.replica == replica;
    });
  }

  SimulatedWorld world_{options()};
};

TEST_F(LargeWorld, WhoHangsIsFoundWhereverItIsInTheTrees) {
  for (const ft::ReplicaId hung : {0U, 7U, 15U}) {
    ASSERT_TRUE(is_member(hung));
    world_.lose(hung, FailureKind::kHang);
    world_.run_until(world_.now() + minutes(2));
    EXPECT_FALSE(is_member(hung)) << hung;
  }
  EXPECT_EQ(members(), kReplicas - 3);
}

TEST_F(LargeWorld, ADeadLinkOfTheTreesIsGoneRound) {
  world_.cut_link(0, 1);  // Position 1 is the parent of 0.
  world_.run_until(world_.now() + minutes(2));
  EXPECT_EQ(members(), kReplicas);
  const auto before = world_.progress().steps;
  world_.run_until(world_.now() + minutes(1));
  EXPECT_GT(world_.progress().steps, before + 20);
}

}  // namespace
}  // namespace sherd::sim
