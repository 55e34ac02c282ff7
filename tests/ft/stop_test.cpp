// SPDX-License-Identifier: Apache-2.0
//
// Processes that are stopped, for a while or for good, completely or in part.
#include <chrono>
#include <csignal>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/cluster.h"
#include "ft/wire/codec.h"

namespace sherd::ft::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Silence is noticed after a second and a heartbeat; then it is the same as for a killed replica.
constexpr Duration kSilenceGap = milliseconds(1250 + 1800);

TEST(FaultsStop, F18ForGoodInReduceIsEvictedAndNotItsNeighbour) {
  ClusterOptions options;
  options.steps = 40;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.stop_at({.replica = 1, .point = "reducing", .step = 10}, {});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kSilenceGap,
       .says = {
           "warning: [ft] replica 1: nothing was heard for",
           ", the limit is 1.0 s; rank 0 "}});
  EXPECT_EQ(outcome.epochs(), 2);
}

TEST(FaultsStop, F19ForHalfTheTimeChangesNothing) {
  ClusterOptions options;
  options.steps = 40;
  options.coordinator.dead_after = milliseconds(3000);
  Cluster cluster(options);
  cluster.stop_at(
      {.replica = 1, .point = "backward", .step = 10}, milliseconds(1500));
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}});
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsStop, F20PastEvictionItCatchesUp) {
  ClusterOptions options;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.stop_at({.replica = 1, .point = "backward", .step = 10}, {});
  cluster.when_held(20, [&] { cluster.signal(1, 0, SIGCONT); });
  cluster.end_behind({.replica = 1, .life = 1, .above = 20});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kSilenceGap});
  EXPECT_EQ(outcome.members_at(20), 2);
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsStop, F20PastItsReplacementItIsFenced) {
  ClusterOptions options;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  pid_t former = -1;
  cluster.at({.replica = 1, .point = "backward", .step = 10}, [&] {
    cluster.signal(1, 0, SIGSTOP);
    former = cluster.pid_of(1, 0);
    cluster.after(milliseconds(1300), [&] { cluster.start(1); });
    return std::string();
  });
  cluster.at({.replica = 1, .point = "forward", .step = -1, .life = 2}, [&] {
    cluster.wake(former);
    return std::string();
  });
  // Enough time for the former incarnation to learn of it.
  cluster.end_behind({.replica = 1, .more = 100});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kSilenceGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), 2U);
  EXPECT_THAT(lives[0]->failure, HasSubstr("was replaced by a newer one"));
  EXPECT_TRUE(lives[1]->done) << lives[1]->failure;
}

TEST(FaultsStop, F21OnlyTheThreadThatTrainsIsEvictedForLackOfProgress) {
  ClusterOptions options;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  Cluster cluster(options);
  // By then the usual lengths are known.
  cluster.order_at(
      {.replica = 1, .point = "backward", .step = 60}, "sleep 6000");
  cluster.end_behind({.replica = 1, .life = 1, .above = 61});
  const auto outcome = cluster.run();
  // Phases shorter than a heartbeat count as at most that long.
  outcome.check(
      {.survivors = {0, 2},
       .gap_max = kSilenceGap + 10 * kHeartbeatInterval,
       .says = {"replica 1: it hangs: it has been computing for"}});
  EXPECT_EQ(outcome.members_at(60), 2);
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

TEST(FaultsStop, F22TheCoordinatorStandsStillAndBlamesNobody) {
  ClusterOptions options;
  options.steps = 40;
  options.coordinator.dead_after = kSilence;
  Cluster cluster(options);
  cluster.when_held(10, [&] {
    cluster.signal_coordinator(SIGSTOP);
    cluster.after(
        milliseconds(2000), [&] { cluster.signal_coordinator(SIGCONT); });
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = milliseconds(4800)});
  EXPECT_GE(outcome.longest_gap({0, 1, 2}), milliseconds(1500));
  EXPECT_EQ(outcome.epochs(), 1);
  EXPECT_EQ(outcome.history().term, 1U);
}

}  // namespace
}  // namespace sherd::ft::test
