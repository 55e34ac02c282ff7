// SPDX-License-Identifier: Apache-2.0
//
// Reports about hangs name the rank that stands still and those that wait for it; a rank whose
// agent is busy for long does not count as silent; a dead link is named, and avoided if another
// ring is possible.
#include <chrono>
#include <csignal>
#include <string>
#include <variant>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/cluster.h"
#include "ft/wire/codec.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr Duration kHangGap = kGap + milliseconds(1250);

ClusterOptions of_two_ranks() {
  ClusterOptions options;
  options.ranks = 2;
  options.steps = 60;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  return options;
}

// The leader lives and reports; the other rank's whole process is stopped.
TEST(FaultsHang, F18OfARankThatStandsInReduceTheAgentIsNamed) {
  Cluster cluster(of_two_ranks());
  cluster.stop_at(
      {.replica = 1, .rank = 1, .point = "reducing", .step = 10}, {});
  // No replica waits for what is left of it.
  cluster.when_held(60, [&] { cluster.signal(1, 0, SIGKILL); });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kHangGap,
       .says = {
           "replica 1: it hangs: one of its agents has said nothing for",
           "; rank 1 has an agent that has said nothing for"}});
  EXPECT_EQ(outcome.members_at(60), 2);
}

TEST(FaultsHang, F21TheReportNamesTheRankThatComputesAndWhoWaitsForWhichUnit) {
  Cluster cluster(of_two_ranks());
  // By then the usual lengths are known.
  cluster.order_at(
      {.replica = 1, .rank = 1, .point = "backward", .step = 60}, "sleep 6000");
  cluster.end_behind({.replica = 1, .life = 1, .above = 61});
  const auto outcome = cluster.run();
  // Phases shorter than a heartbeat count as at most that long.
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kHangGap + 10 * kHeartbeatInterval,
       .says = {
           "replica 1: it hangs: it has been computing for",
           "; rank 1 has been computing for",
           "; replica 2 rank 1 waits for its bytes in bucket 0 (unit 0), 0 of "
           "2 slices done"}});
  EXPECT_THAT(outcome.coordinator, Not(HasSubstr("replica 0: it hangs")));
  EXPECT_THAT(outcome.coordinator, Not(HasSubstr("replica 2: it hangs")));
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsHang, F21OnlyTheThreadThatReportsIsEvictedForSilence) {
  ClusterOptions options;
  options.steps = 300;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  // At the sixth heartbeat, wherever training is by then.
  cluster.at({.replica = 1, .point = "beat", .step = 6}, [&] {
    const auto above = cluster.last_held() + 5;
    cluster.end_behind({.replica = 1, .life = 1, .above = above});
    return std::string("sleep 3000");
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kHangGap,
       .says = {"replica 1: nothing was heard for"}});
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsHang, F36OneThatIsSlowIsReportedAndNotEvicted) {
  Cluster cluster({.steps = 70});
  cluster.order_at(
      {.replica = 1, .point = "backward", .step = 60}, "sleep 2000");
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2},
       .says = {"replica 1 is slow: it has been computing for"}});
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsHang, AFirstOptimizerStepAndAnEvaluationAreNoHangs) {
  ClusterOptions options;
  options.steps = 40;
  options.coordinator.hang_after = milliseconds(1000);
  Cluster cluster(options);
  cluster.order_at({.replica = 1, .point = "update", .step = 1}, "sleep 2500");
  cluster.order_at({.replica = 2, .point = "idle", .step = 20}, "sleep 2500");
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = milliseconds(2500) + kGap});
  EXPECT_EQ(outcome.epochs(), 1);
  EXPECT_THAT(outcome.coordinator, Not(HasSubstr("it hangs")));
}

TEST(FaultsHang, AnAgentThatIsBusyForLongerThanTheDeadAreSilentIsNotEvicted) {
  ClusterOptions options;
  options.steps = 40;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.order_at(
      {.replica = 1, .point = "reducing", .step = 10}, "sleep 1600");
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kHangGap});
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsHang, AnAgentThatStandsForGoodIsEvictedAndComesBackWhenItWakes) {
  ClusterOptions options;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  Cluster cluster(options);
  cluster.order_at(
      {.replica = 1, .point = "reducing", .step = 10}, "sleep 3000");
  cluster.end_behind({.replica = 1, .life = 1, .above = 11});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kHangGap,
       .says = {
           "replica 1: it hangs: one of its agents has said nothing for",
           "; rank 0 has an agent that has said nothing for"}});
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsHang, F32AmongFourTheRingGoesRoundALinkThatDropsOneDirection) {
  ClusterOptions options;
  options.replicas = 4;
  options.links = true;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  Cluster cluster(options);
  cluster.at({.replica = 0, .point = "reducing", .step = 10}, [&] {
    cluster.link(0, 1).set(Direction::kToTarget, {.black_hole_after = 0});
    return std::string();
  });
  // It may come back over the same link once more.
  cluster.end_behind({.replica = 1, .life = 1, .above = 11, .more = 200});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2, 3},
       .gap_max = kHangGap,
       .says = {
           "replica 1: it hangs: it has been reducing for",
           "the link from replica 0 to replica 1 is dead: "}});
  const CommitRecord* last = nullptr;
  for (const auto& record : outcome.log) {
    const auto* commit = std::get_if<CommitRecord>(&record);
    last = commit != nullptr ? commit : last;
  }
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(last->participants.size(), 4U);
  EXPECT_FALSE(are_neighbours(last->participants, 0, 1));
}

}  // namespace
}  // namespace sherd::ft::test
