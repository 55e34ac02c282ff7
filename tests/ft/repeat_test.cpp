// SPDX-License-Identifier: Apache-2.0
//
// Messages between replicas and the coordinator that arrive twice, at once or after later ones:
// votes, joins, commits, all of them. Nothing is done twice, and nothing that is over is done
// again.
#include <string>
#include <gtest/gtest.h>
#include "ft/cluster.h"

namespace sherd::ft::test {
namespace {

using sherd::test::Direction;
using std::chrono::milliseconds;

// The gap of a death, plus a report that counts as the newest until the next one comes.
constexpr Duration kRepeatGap = kGap + milliseconds(2 * 250);

struct Repeat {
  const char* id;
  std::int64_t every;  // Every n-th message is repeated.
  // How many other reports come before the repetition.
  std::int64_t reports_after;
  std::int64_t orders_after;
  std::int64_t epochs_more;
};

class FaultsRepeat : public ::testing::TestWithParam<Repeat> {};

TEST_P(FaultsRepeat, F42MessagesThatComeAgainAreNotObeyedAgain) {
  ClusterOptions options;
  options.links = true;
  options.restarts = true;
  Cluster cluster(options);
  const auto& repeat = GetParam();
  for (ReplicaId one = 0; one < 3; ++one) {
    cluster.coordinator_link(one).set(
        Direction::kToTarget,
        {.frames_again_after = repeat.reports_after,
         .frames_again_every = repeat.every});
    cluster.coordinator_link(one).set(
        Direction::kToClient,
        {.frames_again_after = repeat.orders_after,
         .frames_again_every = repeat.every});
  }
  // So that epochs are joined, left and planned, too.
  cluster.kill_at({.replica = 1, .point = "reducing", .step = 10});
  cluster.end_behind({.replica = 1, .more = 50});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kRepeatGap});
  const auto lives = outcome.lives_of(1);
  ASSERT_EQ(lives.size(), 2U);
  EXPECT_TRUE(outcome.committed_with(1, lives.back()->incarnation));
  EXPECT_EQ(outcome.rollbacks(), 0);
  // One epoch without it and one with it again, and one more if a neighbour was suspected before its
  // own connection was lost. Late reports, which no connection causes by itself, may cost some more
  // epochs, but no step.
  EXPECT_LE(outcome.epochs(), 3 + repeat.epochs_more) << outcome.coordinator;
  const auto traffic = cluster.coordinator_link(0).traffic();
  for (const int direction : {0, 1}) {
    EXPECT_GT(traffic.bytes_out[direction], traffic.bytes_in[direction]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Orders,
    FaultsRepeat,
    ::testing::Values(
        Repeat{"AtOnce", 1, 0, 0, 1},
        Repeat{"OrdersLate", 1, 0, 7, 1},
        Repeat{"ReportsLate", 11, 2, 0, 5},
        Repeat{"BothLate", 13, 40, 60, 5}),
    [](const auto& tested) { return std::string(tested.param.id); });

}  // namespace
}  // namespace sherd::ft::test
