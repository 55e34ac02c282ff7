// SPDX-License-Identifier: Apache-2.0
//
// Replicas that come, come back, leave, or should not have come. soak_test.cpp has F48 and F63 at
// full length.
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

ClusterOptions with_restarts() {
  ClusterOptions options;
  options.restarts = true;
  return options;
}

// The bytes that have reached replicas that fetch from these.
std::int64_t bytes_from(
    Cluster& cluster, const std::vector<ReplicaId>& donors, int rank = 0) {
  std::int64_t bytes = 0;
  for (const auto donor : donors) {
    bytes += cluster.fetch_link(donor, rank)
                 .traffic()
                 .bytes_out[static_cast<int>(Direction::kToClient)];
  }
  return bytes;
}

class FaultsJoin : public ::testing::TestWithParam<const char*> {};

TEST_P(FaultsJoin, F43AJoinerThatDiesCostsTheOthersNothing) {
  Cluster cluster(with_restarts());
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.kill_at({.replica = 1, .point = GetParam(), .step = -1, .life = 2});
  cluster.end_behind({.replica = 1, .life = 3});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), 3U);
  EXPECT_TRUE(lives.back()->done) << lives.back()->failure;
}

INSTANTIATE_TEST_SUITE_P(
    Points,
    FaultsJoin,
    ::testing::Values(
        "fetching", "installing", "installed", "update", "joined", "forward"),
    [](const auto& tested) { return std::string(tested.param); });

// The parameter is a percentage of the state.
class FaultsInAFetch : public ::testing::TestWithParam<int> {};

TEST_P(FaultsInAFetch, F43AJoinerThatDiesCostsTheOthersNothing) {
  auto options = with_restarts();
  options.fetch_links = true;
  options.ballast_bytes = 500000;
  // With two donors it takes half a second.
  options.fetch_bytes_per_s_max = 500000;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  const std::int64_t enough = GetParam() * 5000;
  std::function<void()> look = [&] {
    if (bytes_from(cluster, {0, 2}) >= enough) {
      cluster.signal_all(1, SIGKILL);
    } else {
      cluster.after(milliseconds(3), look);
    }
  };
  cluster.at({.replica = 1, .point = "fetching", .step = -1, .life = 2}, [&] {
    look();
    return std::string();
  });
  cluster.end_behind({.replica = 1, .life = 3});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  EXPECT_GE(outcome.lives_of(1).size(), 3U);
  EXPECT_TRUE(outcome.lives_of(1).back()->done);
}

INSTANTIATE_TEST_SUITE_P(
    PerCent, FaultsInAFetch, ::testing::Values(50, 99), [](const auto& tested) {
      return "At" + std::to_string(tested.param);
    });

// Its first task is for the initial state, however far the others are.
TEST(FaultsJoining, F43OneThatDiesWhileItWarmsUpCostsTheOthersNothing) {
  auto options = with_restarts();
  options.warms_up = true;
  options.ballast_bytes = 500000;
  options.fetch_bytes_per_s_max = 250000;  // With two donors it takes a second.
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.kill_at({.replica = 1, .point = "backward", .step = 1, .life = 2});
  bool warmed_up = false;
  cluster.at({.replica = 1, .point = "gradients", .step = 1, .life = 3}, [&] {
    warmed_up = cluster.last_held() > 1;
    return std::string();
  });
  cluster.end_behind({.replica = 1, .life = 3, .above = 5});
  const auto outcome = cluster.run();
  EXPECT_TRUE(warmed_up);
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), 3U);
  EXPECT_TRUE(lives.back()->done) << lives.back()->failure;
  EXPECT_TRUE(outcome.committed_with(1, lives.back()->incarnation));
}

TEST(FaultsJoining, F44ADonorThatDiesIsReplacedByAnother) {
  auto options = with_restarts();
  options.fetch_links = true;
  options.ballast_bytes = 500000;
  // With two donors it takes half a second.
  options.fetch_bytes_per_s_max = 500000;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.end_behind({.replica = 1, .more = 50});
  // Whichever of them has delivered something first.
  std::function<void()> look = [&] {
    for (const ReplicaId donor : {0U, 2U}) {
      if (bytes_from(cluster, {donor}) > 50000) {
        cluster.end_behind({.replica = donor, .more = 50});
        cluster.signal_all(donor, SIGKILL);
        return;
      }
    }
    cluster.after(milliseconds(3), look);
  };
  cluster.at({.replica = 1, .point = "fetching", .step = -1, .life = 2}, [&] {
    look();
    return std::string();
  });
  const auto outcome = cluster.run();
  outcome.check({});
  EXPECT_EQ(outcome.lives.size(), 5U);  // It and the donor each have one more.
  for (const ReplicaId one : {0U, 1U, 2U}) {
    EXPECT_TRUE(outcome.lives_of(one).back()->done) << one;
  }
}

TEST(FaultsJoining, F45AFetchThatLastsManyStepsCatchesUpWithoutAStall) {
  auto options = with_restarts();
  options.ballast_bytes = 500000;
  // With two donors it takes a quarter of a second, or a dozen steps.
  options.fetch_bytes_per_s_max = 1000000;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto* last = outcome.lives_of(1).back();
  EXPECT_TRUE(outcome.committed_with(1, last->incarnation));
}

// The sums that it collects meanwhile must suffice: donors keep fewer sums than there are steps
// during the fetch, and so does it.
TEST(FaultsJoining, F45AStateSlowerThanAllSumsThatDonorsKeepCatchesUp) {
  auto options = with_restarts();
  options.buckets = {150, 251};
  options.ballast_bytes = 1500000;
  // With two donors it takes two seconds.
  options.fetch_bytes_per_s_max = 375000;
  options.sums_bytes_max = std::uint64_t{60} * 401 * 4;
  options.limit = milliseconds(90000);
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto* last = outcome.lives_of(1).back();
  EXPECT_EQ(last->life, 2);
  EXPECT_TRUE(outcome.committed_with(1, last->incarnation));
}

TEST(FaultsJoining, F46AChunkThatIsDamagedOnTheWayIsFetchedAgain) {
  auto options = with_restarts();
  options.fetch_links = true;
  Cluster cluster(options);
  for (ReplicaId one = 0; one < 3; ++one) {
    cluster.fetch_link(one).set(
        Direction::kToClient, {.flip_bit_at = 9000, .strikes_max = 1});
  }
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  std::int64_t strikes = 0;
  for (const ReplicaId donor : {0U, 2U}) {
    strikes += cluster.fetch_link(donor)
                   .traffic()
                   .strikes[static_cast<int>(Direction::kToClient)];
  }
  EXPECT_GE(strikes, 1);
  const auto* last = outcome.lives_of(1).back();
  EXPECT_EQ(last->life, 2);
  EXPECT_TRUE(outcome.committed_with(1, last->incarnation));
}

TEST(FaultsJoining, F47AStateComesFromAllDonorsOfEachRank) {
  auto options = with_restarts();
  options.ranks = 2;
  options.fetch_links = true;
  options.ballast_bytes = 2000000;
  // With two donors it takes half a second.
  options.fetch_bytes_per_s_max = 2000000;
  // Both have the same state when asked for it.
  options.coordinator.replicas_min = 3;
  Cluster cluster(options);
  cluster.kill_at({.replica = 1, .point = "backward", .step = 5});
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 2}, .gap_max = kGap + std::chrono::seconds(5)});
  const auto* last = outcome.lives_of(1).back();
  EXPECT_TRUE(outcome.committed_with(1, last->incarnation));
  // A donor that answers 300 ms later than the other one is not waited for.
  if (outcome.stall > milliseconds(100)) {
    return;
  }
  for (const ReplicaId donor : {0U, 2U}) {
    for (const int rank : {0, 1}) {
      EXPECT_GE(bytes_from(cluster, {donor}, rank), 500000)
          << donor << ' ' << rank;
    }
  }
}

TEST(FaultsJoining, F47FourComeBackAndOneMoreDies) {
  auto options = with_restarts();
  options.replicas = 6;
  Cluster cluster(options);
  for (ReplicaId one = 0; one < 5; ++one) {
    cluster.end_behind({.replica = one, .more = 100});
  }
  cluster.when_held(5, [&] {
    for (ReplicaId one = 1; one < 5; ++one) {
      cluster.signal_all(one, SIGKILL);
    }
  });
  cluster.when_held(15, [&] { cluster.signal_all(0, SIGKILL); });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {5}, .gap_max = 2 * kGap});
  EXPECT_EQ(outcome.members_at(outcome.steps), 6) << outcome.coordinator;
}

// The end of time if there is none.
Instant first_computation(const Life& life) {
  for (const auto& event : life.trace) {
    if (event.kind == TraceEvent::Kind::kComputes) {
      return event.at;
    }
  }
  ADD_FAILURE() << "life " << life.life << " has computed nothing";
  return Instant::max();
}

TEST(FaultsJoining, F48OneThatFlapsIsKeptOutLongerEachTime) {
  Cluster cluster(with_restarts());
  constexpr int kFlaps = 4;
  for (int life = 1; life <= kFlaps; ++life) {
    cluster.kill_at(
        {.replica = 1, .point = "backward", .step = -1, .life = life});
  }
  cluster.end_behind({.replica = 1, .life = kFlaps + 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), kFlaps + 1U);
  // From the last message of the previous incarnation: the first failure is not held against it.
  milliseconds kept_out(1000);
  for (std::size_t i = 2; i < lives.size(); ++i) {
    EXPECT_GE(
        first_computation(*lives[i]) - lives[i - 1]->trace.back().at, kept_out)
        << "life " << lives[i]->life;
    kept_out *= 2;
  }
}

TEST(FaultsJoining, F49OfTwoLivesOfOneNameTheNewerCounts) {
  Cluster cluster({});
  cluster.when_held(10, [&] { cluster.start(1); });
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), 2U);
  EXPECT_THAT(lives[0]->failure, HasSubstr("was replaced by a newer one"));
  EXPECT_TRUE(lives[1]->done) << lives[1]->failure;
  EXPECT_TRUE(outcome.committed_with(1, lives[1]->incarnation));
}

TEST(FaultsJoining, F50OneOfAnotherConfigurationIsRefusedWithAReason) {
  Cluster cluster({.steps = 40});
  cluster.when_held(10, [&] {
    cluster.set_config(6);
    cluster.start(3);
  });
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 1, 2}, .gap_max = kGap});
  EXPECT_EQ(outcome.epochs(), 1);
  EXPECT_THAT(
      outcome.lives_of(3).front()->failure,
      HasSubstr("expected the configuration 5 of the other replicas, found 6"));
}

TEST(FaultsJoining, F63LeavingAndComingInOrderAbortsNothing) {
  ClusterOptions options;
  options.returns = true;
  options.restart_after = milliseconds(200);
  Cluster cluster(options);
  for (int life = 1; life <= 5; ++life) {
    cluster.at(
        {.replica = 1, .point = "forward", .step = -1, .life = life},
        [] { return std::string("leave"); });
  }
  cluster.end_behind({.replica = 1, .life = 6});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto lives = outcome.lives_of(1);
  EXPECT_EQ(lives.size(), 6U);
  for (const auto* life : lives) {
    EXPECT_TRUE(life->done) << life->failure;
  }
  // One epoch when it has left and one when it has come: none was broken.
  EXPECT_LE(outcome.epochs(), 2 * static_cast<std::int64_t>(lives.size()) + 1);
}

}  // namespace
}  // namespace sherd::ft::test
