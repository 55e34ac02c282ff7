// SPDX-License-Identifier: Apache-2.0
//
// Ring links that carry nothing while each replica's connection to the coordinator works: the
// largest set that can be connected trains on, and the replica at the end of the dead links is
// named.
#include <chrono>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

// The links have to be noticed, and one or two rings cannot be connected: 1.4 to 2.2 s on an idle
// machine.
constexpr Duration kCutGap = milliseconds(6000);

ClusterOptions with_ring_links(int replicas, int replicas_min) {
  ClusterOptions options;
  options.replicas = replicas;
  options.links = true;
  options.coordinator.replicas_min = replicas_min;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  return options;
}

enum class Cut { kIn, kOut, kBoth };

// Bytes on the victim's ring links vanish.
void cut(Cluster& cluster, int replicas, ReplicaId victim, Cut which) {
  const sherd::test::Faults hole{.black_hole_after = 0};
  for (ReplicaId other = 0; other < static_cast<ReplicaId>(replicas); ++other) {
    if (other != victim && which != Cut::kOut) {
      cluster.link(other, victim).set(Direction::kToTarget, hole);
      cluster.link(victim, other).set(Direction::kToClient, hole);
    }
    if (other != victim && which != Cut::kIn) {
      cluster.link(other, victim).set(Direction::kToClient, hole);
      cluster.link(victim, other).set(Direction::kToTarget, hole);
    }
  }
}

std::vector<ReplicaId> all_but(ReplicaId victim, int replicas) {
  std::vector<ReplicaId> others;
  for (ReplicaId one = 0; one < static_cast<ReplicaId>(replicas); ++one) {
    if (one != victim) {
      others.push_back(one);
    }
  }
  return others;
}

struct DataPlaneCase {
  int replicas;
  ReplicaId victim;
  Cut which;
};

std::string name_of_case(const DataPlaneCase& tested) {
  const char* which = tested.which == Cut::kIn ? "In"
      : tested.which == Cut::kOut              ? "Out"
                                               : "Both";
  return str("Replica", tested.victim, "Of", tested.replicas, which);
}

class FaultsDataPlane : public ::testing::TestWithParam<DataPlaneCase> {};

TEST_P(FaultsDataPlane, OneThatCannotBeReachedTakesNobodyWithIt) {
  const auto [replicas, victim, which] = GetParam();
  auto options = with_ring_links(replicas, replicas - 1);
  options.steps = std::int64_t{1} << 40;
  Cluster cluster(options);
  cluster.when_held(10, [&, of = replicas, who = victim, how = which] {
    cut(cluster, of, who, how);
    // The replica is tried again, and fails again, while the others train.
    cluster.after(milliseconds(7000), [&] {
      cluster.set_steps(cluster.last_held() + 30);
    });
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.gap_max = kCutGap,
       .replicas_min = replicas - 1,
       .says = {str("replica ", victim, ": it is left out")}});
  EXPECT_EQ(outcome.members_at(outcome.steps), replicas - 1);
  for (const auto healthy : all_but(victim, replicas)) {
    EXPECT_THAT(
        outcome.coordinator,
        Not(HasSubstr(str("replica ", healthy, ": it is left out"))));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cuts,
    FaultsDataPlane,
    ::testing::Values(
        DataPlaneCase{3, 0, Cut::kIn},
        DataPlaneCase{3, 1, Cut::kOut},
        DataPlaneCase{3, 2, Cut::kBoth},
        DataPlaneCase{4, 0, Cut::kBoth},
        DataPlaneCase{5, 1, Cut::kIn}),
    [](const auto& tested) { return name_of_case(tested.param); });

TEST(FaultsRingPort, OneThatIsReachedAgainIsBackInSeconds) {
  Cluster cluster(with_ring_links(3, 2));
  Instant healed{0};
  const SteadyClock clock;
  cluster.when_held(10, [&] {
    cut(cluster, 3, 1, Cut::kIn);
    cluster.after(milliseconds(6000), [&] {
      cluster.heal();
      healed = clock.now();
      cluster.end_behind(
          {.replica = 1, .life = 1, .above = cluster.last_held(), .more = 5});
    });
  });
  cluster.set_steps(std::int64_t{1} << 40);
  const auto outcome = cluster.run();
  outcome.check({.gap_max = kCutGap, .replicas_min = 2});
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
  // The longest wait, an attempt under way, and one that succeeds.
  EXPECT_LT(clock.now() - healed, milliseconds(4000 + 1000 + 3000));
}

class FaultsAllLinks : public ::testing::TestWithParam<int> {};

TEST_P(FaultsAllLinks, WhereNoTwoReachEachOtherOneTrainsOn) {
  const int replicas = GetParam();
  auto options = with_ring_links(replicas, 1);
  options.steps = std::int64_t{1} << 40;
  Cluster cluster(options);
  cluster.when_held(10, [&] {
    for (ReplicaId one = 0; one < static_cast<ReplicaId>(replicas); ++one) {
      cut(cluster, replicas, one, Cut::kBoth);
    }
    cluster.after(milliseconds(5000), [&] {
      cluster.heal();
      for (ReplicaId one = 0; one < static_cast<ReplicaId>(replicas); ++one) {
        cluster.end_behind(
            {.replica = one,
             .life = 1,
             .above = cluster.last_held(),
             .more = 5});
      }
    });
  });
  const auto outcome = cluster.run();
  outcome.check({.gap_max = kCutGap});
  EXPECT_EQ(outcome.members_at(outcome.steps), replicas);
}

INSTANTIATE_TEST_SUITE_P(Replicas, FaultsAllLinks, ::testing::Values(2, 3));

}  // namespace
}  // namespace sherd::ft::test
