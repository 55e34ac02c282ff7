// SPDX-License-Identifier: Apache-2.0
#include "sim/failures.h"

#include <cmath>
#include <map>
#include <gtest/gtest.h>

namespace sherd::sim {
namespace {

using std::chrono::hours;

SimulationOptions failing_cluster() {
  SimulationOptions options;
  options.replicas = 4;
  options.mtbf_min = 10;
  return options;
}

TEST(FailureSource, EvenFailuresTakeReplicasInTurn) {
  auto options = failing_cluster();
  options.arrivals = Arrivals::kEven;
  FailureSource source(options, 1);
  for (int i = 0; i < 9; ++i) {
    const auto failure = source.next();
    EXPECT_EQ(failure.at, sim::minutes(10) * i);
    EXPECT_EQ(failure.replicas, std::vector<int>{i % 4});
  }
}

TEST(FailureSource, EvenFailuresKeepTheSharesExactly) {
  auto options = failing_cluster();
  options.arrivals = Arrivals::kEven;
  options.whole_job_share = 0.1;
  options.two_replica_share = 0.25;
  FailureSource source(options, 1);
  int whole = 0;
  int two = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto failure = source.next();
    whole += failure.whole_job ? 1 : 0;
    two += failure.replicas.size() == 2 ? 1 : 0;
  }
  EXPECT_NEAR(whole, 100, 1);
  EXPECT_NEAR(two, 225, 1);
}

TEST(FailureSource, RandomFailuresHaveTheirMeanAndTakeAllReplicasAlike) {
  FailureSource source(failing_cluster(), 7);
  constexpr int kCount = 20000;
  std::map<int, int> taken;
  Instant last{};
  for (int i = 0; i < kCount; ++i) {
    const auto failure = source.next();
    EXPECT_GT(failure.at, last);
    last = failure.at;
    ++taken[failure.replicas[0]];
  }
  // Three standard deviations.
  EXPECT_NEAR(sherd::seconds(last) / kCount / 600, 1, 3 / std::sqrt(kCount));
  for (const auto& [replica, count] : taken) {
    EXPECT_NEAR(count, kCount / 4, 3 * std::sqrt(kCount * 3.0 / 16)) << replica;
  }
}

TEST(FailureSource, OneSeedIsOneCourse) {
  FailureSource one(failing_cluster(), 3);
  FailureSource same(failing_cluster(), 3);
  FailureSource other(failing_cluster(), 4);
  const auto first = one.next();
  EXPECT_EQ(first.at, same.next().at);
  EXPECT_NE(first.at, other.next().at);
}

TEST(FailureCauses, AddUpToAll) {
  double all = 0;
  for (const auto& cause : failure_causes()) {
    all += cause.share;
  }
  EXPECT_NEAR(all, 1, 1e-9);
}

TEST(SparePool, LendsWhatIsThereAndThenWhatIsRepaired) {
  SparePool pool(1, hours(12));
  EXPECT_EQ(pool.replace(hours(1)), Instant(hours(1)));
  EXPECT_EQ(pool.replace(hours(2)), Instant(hours(13)));   // The first one.
  EXPECT_EQ(pool.replace(hours(20)), Instant(hours(20)));  // The second one.
}

TEST(SparePool, WithoutSparesEachWaitsForItsOwnRepair) {
  SparePool pool(0, hours(12));
  EXPECT_EQ(pool.replace(hours(1)), Instant(hours(13)));
  EXPECT_EQ(pool.replace(hours(20)), Instant(hours(32)));
}

TEST(SparePool, WithoutALimitNobodyWaits) {
  SparePool pool(std::nullopt, hours(12));
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pool.replace(hours(1)), Instant(hours(1)));
  }
}

}  // namespace
}  // namespace sherd::sim
