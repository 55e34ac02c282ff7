// SPDX-License-Identifier: Apache-2.0
//
// Links between replicas that are cut, slow, late or damaged. F40, F41 and F62 are
// RingStrangers and RingDamage, F65 is RingStop of ft_ring_test.
#include <chrono>
#include <cstdio>
#include <string>
#include <utility>
#include <gtest/gtest.h>
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;

ClusterOptions with_links() {
  ClusterOptions options;
  options.steps = 40;
  options.links = true;
  options.coordinator.hang_after = milliseconds(1000);
  options.coordinator.first_hang_after = milliseconds(1000);
  return options;
}

TEST(FaultsNetwork, F32ALinkThatDropsOneDirectionIsFound) {
  auto options = with_links();
  options.steps = 60;
  Cluster cluster(options);
  cluster.at({.replica = 0, .point = "reducing", .step = 10}, [&] {
    cluster.link(0, 1).set(Direction::kToTarget, {.black_hole_after = 0});
    return std::string();
  });
  const auto outcome = cluster.run();
  // All wait in a circle, so one end of the link is blamed.
  outcome.check(
      {.survivors = {0, 2},
       .says = {
           "replica 1: it hangs: it has been reducing for",
           "the link from replica 0 to replica 1 is dead"}});
  EXPECT_LT(outcome.longest_gap({0, 1, 2}), milliseconds(8000));
}

class FaultsBlackHole : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(FaultsBlackHole, F34InTheDataIsFoundInTimeAndTheStepRepeated) {
  Cluster cluster(with_links());
  cluster.when_held(5, [&] {
    cluster.link(0, 1).set(
        Direction::kToTarget,
        {.black_hole_after = GetParam(), .strikes_max = 1});
  });
  const auto outcome = cluster.run();
  // All wait in a circle, so one end of the link is blamed.
  outcome.check(
      {.survivors = {0, 2},
       .says = {
           "replica 1: it hangs: it has been reducing for",
           "the link from replica 0 to replica 1 is dead"}});
  EXPECT_LT(outcome.longest_gap({0, 1, 2}), milliseconds(8000));
}

INSTANTIATE_TEST_SUITE_P(
    Bytes, FaultsBlackHole, ::testing::Values(0, 100001, 140002));

TEST(FaultsNetwork, F35AResetBetweenHealthyOnesEvictsNobody) {
  Cluster cluster(with_links());
  cluster.at({.replica = 0, .point = "reducing", .step = 10}, [&] {
    cluster.link(0, 1).reset_connections();
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kGap});
  EXPECT_EQ(outcome.epochs(), 2);
  EXPECT_EQ(outcome.members_at(10), 3);
}

TEST(FaultsNetwork, F36OneAtATenthOfTheBandwidthIsNotEvicted) {
  auto options = with_links();
  options.steps = 14;
  Cluster cluster(options);
  cluster.when_held(
      5, [&] { cluster.link(0, 1).set_both({.bytes_per_second = 100000}); });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kGap});
  EXPECT_EQ(outcome.epochs(), 1);
}

// The frames are large enough for the speed to be measured.
TEST(FaultsNetwork, ASlowLinkOfFourIsNotUsedInTheNextOrder) {
  auto options = with_links();
  options.replicas = 4;
  options.steps = 24;
  options.buckets = {131072};
  options.coordinator.hang_after = milliseconds(5000);
  options.coordinator.first_hang_after = milliseconds(5000);
  Cluster cluster(options);
  for (const auto& [from, to] : {std::pair(0U, 1U), std::pair(1U, 0U)}) {
    cluster.link(from, to).set_both({.bytes_per_second = 5'000'000});
  }
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2, 3},
       .gap_max = 2 * kGap,
       .says = {"its link with replica 1 carries"}});
  EXPECT_EQ(outcome.epochs(), 2);
  const auto chain = outcome.chain();
  EXPECT_TRUE(are_neighbours(chain.front()->participants, 0, 1));
  EXPECT_FALSE(are_neighbours(chain.back()->participants, 0, 1));
  EXPECT_EQ(chain.back()->participants.size(), 4U);
}

TEST(FaultsNetwork, F37DelayAndJitterEvictNobody) {
  auto options = with_links();
  options.steps = 8;
  Cluster cluster(options);
  for (ReplicaId from = 0; from < 3; ++from) {
    for (ReplicaId to = 0; to < 3; ++to) {
      cluster.link(from, to).set_both(
          {.delay = milliseconds(30), .jitter = milliseconds(60)});
    }
  }
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = 2 * kGap});
  EXPECT_EQ(outcome.epochs(), 1);
}

TEST(FaultsLoss, F38OfOneSegmentInAHundredEvictsNobody) {
  if (!sherd::test::can_lose_segments()) {
    GTEST_SKIP() << "sockets cannot be made to lose what comes to them";
  }
  auto options = with_links();
  options.steps = 100;
  options.segments_lost_per_mille = 10;
  // A report that is lost two or three times in a row must only count as late.
  options.coordinator.dead_after = milliseconds(3000);
  options.coordinator.join_timeout = milliseconds(5000);
  options.coordinator.hang_after = milliseconds(5000);
  options.coordinator.first_hang_after = milliseconds(5000);
  Cluster cluster(options);
  const SteadyClock clock;
  const Instant begin = clock.now();
  const auto outcome = cluster.run();
  // A single lost segment is sent again after a fifth of a second.
  outcome.check({.survivors = {0, 1, 2}, .gap_max = 2 * kGap});
  EXPECT_EQ(outcome.epochs(), 1);
  std::printf(
      "  %.1f steps a second\n",
      static_cast<double>(options.steps) / seconds(clock.now() - begin));
}

TEST(FaultsNetwork, F39ABitThatFlipsOnTheWayIsNoticedAndTheStepRepeated) {
  Cluster cluster(with_links());
  cluster.link(0, 1).set(
      Direction::kToTarget, {.flip_bit_at = 100001, .strikes_max = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kGap});
  EXPECT_EQ(outcome.epochs(), 2);
}

}  // namespace
}  // namespace sherd::ft::test
