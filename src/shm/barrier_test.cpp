// SPDX-License-Identifier: Apache-2.0
#include "shm/barrier.h"

#include <csignal>
#include <random>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "shm/testing.h"

namespace sherd::shm {
namespace {

using namespace std::chrono_literals;
using test::ChildLink;
using test::index;
using test::kClock;
using test::Table;
using ::testing::HasSubstr;

constexpr std::size_t kCellBytes = 200;

Waiter waiter_of(Peers& peers) { return {peers, kClock, {.deadline = 30s}}; }

// The bytes of a SmallAllGather; counters for each rank and one for run_forked().
Table table_of(int ranks) {
  return {
      ranks, Barrier::cells(ranks) + 1,
      SmallAllGather::bytes(ranks, kCellBytes)};
}

std::span<CounterCell> barrier_cells(const Table& table) {
  return table.cells().first(Barrier::cells(table.ranks));
}

Status meet(Barrier& barrier, Peers& peers, std::string_view what) {
  return barrier.arrive_and_wait(waiter_of(peers), {.what = what});
}

TEST(Barrier, NobodyPassesBeforeAllHaveArrived) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Table table = table_of(ranks);
    // Not atomic, so that TSan can check.
    std::vector<int> round_of(index(ranks), 0);
    test::run_threads(table, [&](int rank, Peers& peers) {
      Barrier barrier(barrier_cells(table), peers);
      for (int round = 1; round <= 200; ++round) {
        round_of[index(rank)] = round;
        ASSERT_TRUE(meet(barrier, peers, "the test").ok());
        for (const int other : round_of) {
          EXPECT_EQ(other, round);
        }
        ASSERT_TRUE(meet(barrier, peers, "the test").ok());
      }
      EXPECT_EQ(barrier.round(), 400U);
    });
  }
}

TEST(Barrier, NamesTheDeadRankLongBeforeTheDeadlineAndStaysBroken) {
  const Table table = table_of(4);
  const auto report = test::run_forked(
      table,
      [&](int rank, Peers& peers, ChildLink& link) {
        Barrier barrier(barrier_cells(table), peers);
        meet(barrier, peers, "the start").throw_if_failed();
        if (rank == 1) {
          link.reach("here");
        }
        link.report(meet(barrier, peers, "the end").message());
        link.report("|" + meet(barrier, peers, "the end").message());
        return 0;
      },
      {{.child = 1, .point = "here", .signal = SIGKILL}});

  for (const std::size_t r : {0U, 2U, 3U}) {
    const auto& end = report.children[r];
    const std::string first = end.result.substr(0, end.result.find('|'));
    EXPECT_THAT(first, HasSubstr("rank 1 has died; awaited the end of rank"));
    EXPECT_EQ(end.result, str(first, "|", first));
    EXPECT_LT(end.ended_at - report.struck_at, 10s);
  }
}

// Rank 0 gives up the round in which it waits. Rank 1, which comes later, finds all ranks there and
// still fails, but not in the round before.
TEST(Barrier, WhoComesLateToAGivenUpRoundFailsToo) {
  const Table table = table_of(2);
  Peers first(table.peers_memory(), {.rank = 0, .ranks = 2});
  Peers second(table.peers_memory(), {.rank = 1, .ranks = 2});
  first.enter();
  second.enter();
  Barrier impatient(barrier_cells(table), first);
  Barrier late(barrier_cells(table), second);
  const Waiter waiter(first, kClock, {.deadline = 1ms});
  Counter(barrier_cells(table)[1]).post(1);  // Rank 1 is in the first round.
  ASSERT_TRUE(impatient.arrive_and_wait(waiter, {.what = "the first"}).ok());
  const Status given_up =
      impatient.arrive_and_wait(waiter, {.what = "the second"});
  EXPECT_THAT(given_up.message(), HasSubstr("timed out after"));

  EXPECT_TRUE(meet(late, second, "the first").ok());
  const Status failed = meet(late, second, "the second");

  EXPECT_EQ(failed.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(failed.message(), HasSubstr("rank 1 is not responding"));
}

double value_of(int rank, int round) { return rank + round * 0.125; }

// Runs many rounds without a barrier in between, with ranks out of step by random times.
std::string gather_rounds(
    const Table& table, int rank, Peers& peers, int rounds) {
  SmallAllGather cells(table.data(), kCellBytes, waiter_of(peers));
  std::mt19937_64 random(index(rank));
  for (int round = 1; round <= rounds; ++round) {
    const std::vector<double> own(1 + index(round) % 20, value_of(rank, round));
    std::vector<double> all(own.size() * index(table.ranks));
    const Status done = cells.all_gather<double>(own, all, "the norms");
    if (!done.ok()) {
      return done.message();
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] != value_of(static_cast<int>(i / own.size()), round)) {
        return str("wrong value ", all[i], " in round ", round);
      }
    }
    for (std::uint64_t pause = random() % 256; pause > 0; --pause) {
      static_cast<void>(kClock.now());
    }
  }
  return "";
}

TEST(SmallAllGather, GatherInRankOrderOverThreads) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Table table = table_of(ranks);
    test::run_threads(table, [&](int rank, Peers& peers) {
      EXPECT_EQ(gather_rounds(table, rank, peers, 500), "");
    });
  }
}

TEST(SmallAllGather, GatherInRankOrderOverProcesses) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Table table = table_of(ranks);
    test::expect_all_ok(
        test::run_forked(table, [&](int rank, Peers& peers, ChildLink& link) {
          const std::string wrong = gather_rounds(table, rank, peers, 500);
          link.report(wrong);
          peers.leave();
          return wrong.empty() ? 0 : 1;
        }));
  }
}

TEST(SmallAllGather, GatherNothingAndAsMuchAsFits) {
  const Table table = table_of(3);
  test::run_threads(table, [&](int rank, Peers& peers) {
    SmallAllGather cells(table.data(), kCellBytes, waiter_of(peers));
    EXPECT_TRUE(cells.all_gather<char>({}, {}, "nothing").ok());
    const std::vector<char> own(kCellBytes, static_cast<char>('a' + rank));
    std::vector<char> all(3 * kCellBytes);
    EXPECT_TRUE(cells.all_gather<char>(own, all, "all").ok());
    EXPECT_EQ(
        std::string(all.begin(), all.end()),
        std::string(kCellBytes, 'a') + std::string(kCellBytes, 'b') +
            std::string(kCellBytes, 'c'));
  });
}

TEST(SmallAllGather, DifferentSizesAreTheSameErrorOnAllRanks) {
  const Table table = table_of(3);
  test::run_threads(table, [&](int rank, Peers& peers) {
    SmallAllGather cells(table.data(), kCellBytes, waiter_of(peers));
    const std::vector<char> own(rank == 1 ? 5 : 4);
    std::vector<char> all(3 * own.size(), 'x');

    const Status refused = cells.all_gather<char>(own, all, "the notes");

    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.code(), ErrorCode::kPeerMismatch);
    EXPECT_THAT(
        refused.message(),
        HasSubstr("the notes: expected 4 bytes as rank 0 brings, found 5 of "
                  "rank 1"));
    EXPECT_THAT(all, ::testing::Each('x'));
    EXPECT_EQ(
        cells.all_gather<char>(own, all, "later").message(), refused.message());
  });
}

}  // namespace
}  // namespace sherd::shm
