// SPDX-License-Identifier: Apache-2.0
//
// Clocks that are wrong, jump, or start at another time than the others'. Only timeouts read a
// clock, and a monotonic one: no replica and no coordinator may notice.
#include <chrono>
#include <csignal>
#include <gtest/gtest.h>
#include "ft/cluster.h"
#include "ft/shifted_clock.h"

namespace sherd::ft::test {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

TEST(FaultsClock, F53AWallClockThatJumpsByAnHourChangesNothing) {
  Cluster cluster({.steps = 60});
  cluster.when_held(10, [&] { cluster.shift_wall_clock_of(1, hours(1)); });
  cluster.when_held(
      20, [&] { cluster.shift_coordinators_wall_clock(-hours(1)); });
  cluster.when_held(30, [&] {
    cluster.shift_wall_clock_of(1, -hours(1));
    cluster.shift_wall_clock_of(2, hours(1));
    cluster.shift_coordinators_wall_clock(hours(1));
  });
  // The coordinator comes back to a time before that of its log.
  cluster.when_held(40, [&] {
    cluster.signal_coordinator(SIGKILL);
    cluster.shift_coordinators_wall_clock(-hours(1));
    cluster.start_coordinator();
  });
  const auto outcome = cluster.run();
  outcome.check(
      {.survivors = {0, 1, 2}, .gap_max = milliseconds(5000), .unused_max = 1});
  // One for the second term, and two more if a replica finds it later than the others.
  EXPECT_LE(outcome.epochs(), 4);
  EXPECT_EQ(outcome.history().term, 2U);
}

TEST(FaultsClockOrigin, F53MonotonicClocksOfOtherOriginsMakeNoDifference) {
  if (!set_monotonic_clock_ahead(hours(1)) ||
      !set_monotonic_clock_ahead(hours(0))) {
    GTEST_SKIP() << "only root has name spaces of time, where there are any";
  }
  Cluster cluster({});
  cluster.set_clock_ahead(1, hours(1));
  cluster.set_clock_ahead(2, hours(1000));
  // The clock of a new incarnation starts elsewhere than the former one's.
  cluster.when_held(20, [&] {
    cluster.set_clock_ahead(1, hours(3));
    cluster.signal_all(1, SIGKILL);
    cluster.start(1);
  });
  cluster.end_behind({.replica = 1});
  const auto outcome = cluster.run();
  outcome.check({.survivors = {0, 2}, .gap_max = kGap});
  const auto* last = outcome.lives_of(1).back();
  EXPECT_TRUE(outcome.committed_with(1, last->incarnation));
  EXPECT_EQ(outcome.members_at(outcome.steps), 3);
}

}  // namespace
}  // namespace sherd::ft::test
