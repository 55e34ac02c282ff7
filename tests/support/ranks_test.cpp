// SPDX-License-Identifier: Apache-2.0
//
// A failure on a rank is a failure of the test: nothing else proves that the multi-process tests
// test anything.
#include "support/ranks.h"

#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

namespace sherd::test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST(RunRanks, GivesEveryRankAWorldAndReturnsResults) {
  const RankReport report = run_ranks(3, [](World world, Rank& self) {
    self.report("rank " + std::to_string(world.rank()));
    self.report(" of " + std::to_string(world.size()));
    std::printf("hello\n");
  });
  expect_all_ok(report);
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(report[r].result, "rank " + std::to_string(r) + " of 3");
    EXPECT_EQ(report[r].output, "hello\n");
  }
}

TEST(RunRanks, ReportsExpectationsExceptionsSignalsAndExits) {
  const RankReport report = run_processes(5, [](int index, Rank&) {
    switch (index) {
      case 1:
        EXPECT_EQ(1, 2) << "deliberate";
        return;
      case 2:
        throw std::runtime_error("deliberate");
      case 3:
        ::raise(SIGKILL);
        return;
      case 4:
        ::_exit(7);
      default:
        return;
    }
  });
  EXPECT_EQ(report[0].exit_code, 0);
  EXPECT_EQ(report[1].exit_code, 1);
  EXPECT_THAT(report[1].output, HasSubstr("deliberate"));
  EXPECT_EQ(report[2].exit_code, 3);
  EXPECT_THAT(report[2].output, HasSubstr("exception: deliberate"));
  EXPECT_EQ(report[3].exit_code, -1);
  EXPECT_EQ(report[3].signal, SIGKILL);
  EXPECT_EQ(report[4].exit_code, 7);
  // That has not made the parent's own test fail, but this does:
  EXPECT_NONFATAL_FAILURE(
      {
        RankReport one;
        one.ranks.push_back(report[1]);
        expect_all_ok(one);
      },
      "deliberate");
}

TEST(RunRanks, KillsWhatRunsIntoTheTimeLimit) {
  const RankReport report = run_processes(
      2,
      [](int index, Rank&) {
        if (index == 1) {
          ::pause();
        }
      },
      {.timeout = 5s});
  EXPECT_EQ(report[0].exit_code, 0);
  EXPECT_FALSE(report[0].timed_out);
  EXPECT_TRUE(report[1].timed_out);
  EXPECT_EQ(report[1].signal, SIGKILL);
}

TEST(RunRanks, StrikesAtNamedPointsOnly) {
  const RankReport report = run_processes(
      3,
      [](int index, Rank& self) {
        self.reach("elsewhere");
        self.reach("here");
        self.report("went on");
        EXPECT_EQ(index, 0);
      },
      {.strikes = {
           {.child = 1, .point = "here", .signal = SIGKILL},
           {.child = 2, .point = "here", .signal = SIGSTOP}}});
  EXPECT_EQ(report[0].exit_code, 0);
  EXPECT_EQ(report[0].result, "went on");
  for (const int r : {1, 2}) {
    EXPECT_EQ(report[r].signal, SIGKILL);
    EXPECT_EQ(report[r].result, "");
    EXPECT_FALSE(report[r].timed_out);
  }
  EXPECT_GE(report.after_strike(2).count(), 0);
}

}  // namespace
}  // namespace sherd::test
