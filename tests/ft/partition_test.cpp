// SPDX-License-Identifier: Apache-2.0
//
// Partitions: connections that carry nothing for a while.
#include <chrono>
#include <string>
#include <gtest/gtest.h>
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using std::chrono::milliseconds;

constexpr Duration kSilenceGap = milliseconds(1250 + 1800);

TEST(FaultsPartition, F30TheSideOfTheCoordinatorGoesOnAndTheOtherCatchesUp) {
  ClusterOptions options;
  options.links = true;
  options.coordinator.replicas_min = 2;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.at({.replica = 2, .point = "reducing", .step = 11}, [&] {
    cluster.part(2, 0);
    cluster.part(2, 1);
    cluster.coordinator_link(2).set_both({.paused = true});
    return std::string();
  });
  cluster.when_held(20, [&] { cluster.heal(); });
  cluster.end_behind({.replica = 2, .life = 1, .above = 20});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1}, .gap_max = kSilenceGap, .replicas_min = 2});
  EXPECT_EQ(outcome.members_at(20), 2);
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsPartition, F31WithTheMinorityNothingIsCommittedAndNothingLost) {
  ClusterOptions options;
  options.steps = 40;
  options.links = true;
  options.coordinator.replicas_min = 2;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.when_held(10, [&] {
    for (const ReplicaId one : {1U, 2U}) {
      cluster.part(0, one);
      cluster.coordinator_link(one).set_both({.paused = true});
    }
    cluster.after(milliseconds(1700), [&] { cluster.heal(); });
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .gap_max = milliseconds(1700) + kSilenceGap,
       // A replica that is back later than the minimum follows in that step.
       .unused_max = 1,
       .replicas_min = 2});
  EXPECT_GT(outcome.longest_gap({0, 1, 2}), milliseconds(1500));
}

TEST(FaultsPartition, F33OneCutFromTheCoordinatorAloneCommitsNothingAlone) {
  ClusterOptions options;
  options.links = true;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.at({.replica = 1, .point = "reducing", .step = 10}, [&] {
    cluster.coordinator_link(1).set_both({.paused = true});
    return std::string();
  });
  cluster.when_held(20, [&] { cluster.heal(); });
  cluster.end_behind({.replica = 1, .life = 1, .above = 20});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kSilenceGap,
       .says = {"nothing was heard for"}});
  EXPECT_EQ(outcome.members_at(20), 2);
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

}  // namespace
}  // namespace sherd::ft::test
