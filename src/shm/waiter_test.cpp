// SPDX-License-Identifier: Apache-2.0
#include "shm/waiter.h"

#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/run_main.h>
#include "base/process.h"
#include "shm/testing.h"

namespace sherd::shm {
namespace {

using namespace std::chrono_literals;
using test::ChildLink;
using test::kClock;
using test::Table;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A table of `ranks` with two counters: one to wait for, and one for run_forked().
Table waiter_table(int ranks) { return {ranks, 2, 0}; }

// What a rank reports when it waits in vain for `awaited`.
int wait_in_vain(
    const Table& table,
    Peers& peers,
    ChildLink& link,
    int awaited,
    Duration deadline) {
  const Waiter waiter(peers, kClock, {.deadline = deadline});
  const Status done = waiter.wait(
      table.counter(0), 7,
      {.rank = awaited, .what = "the gradients of unit", .number = 3});
  link.report(
      done.ok() ? done.message()
                : str(static_cast<int>(done.code()), " ", done.message()));
  return 0;
}

TEST(Waiter, ReturnsWhenTheCounterIsThere) {
  for (const Duration spin : {Duration(0), Duration(20us), Duration(1s)}) {
    const Table table = waiter_table(2);
    test::run_threads(table, [&](int rank, Peers& peers) {
      const Waiter waiter(peers, kClock, {.deadline = 30s, .spin = spin});
      if (rank == 0) {
        table.counter(0).post(2);
      } else {
        EXPECT_TRUE(waiter.wait(table.counter(0), 2, {.rank = 0}).ok());
      }
    });
  }
}

TEST(Waiter, EndsWhenTheProgramIsInterrupted) {
  const Table table = waiter_table(2);
  test::run_threads(table, [&](int rank, Peers& peers) {
    if (rank != 0) {
      return;
    }
    set_interrupt_check([] { return true; });
    const Waiter waiter(peers, kClock, {.deadline = 1h});
    const Status done = waiter.wait(
        table.counter(0), 1, {.rank = 1, .what = "the gradients of unit"});
    set_interrupt_check(nullptr);
    EXPECT_EQ(done.code(), ErrorCode::kAborted);
    EXPECT_THAT(
        done.message(),
        AllOf(
            HasSubstr("interrupted"),
            HasSubstr("gradients of unit of rank 1")));
  });
}

TEST(Waiter, NamesTheRankThatDiesLongBeforeTheDeadline) {
  for (const int ranks : {2, 3, 4, 7}) {
    const int victim = ranks - 1;
    const Table table = waiter_table(ranks);

    const auto report = test::run_forked(
        table,
        [&](int rank, Peers& peers, ChildLink& link) {
          if (rank == victim) {
            link.reach("here");
          }
          // Not all ranks wait for the one that dies.
          return wait_in_vain(table, peers, link, rank == 0 ? victim : 0, 30s);
        },
        {{.child = victim, .point = "here", .signal = SIGKILL}});

    EXPECT_EQ(
        report.children[static_cast<std::size_t>(victim)].signal, SIGKILL);
    for (int r = 0; r < victim; ++r) {
      const auto& end = report.children[static_cast<std::size_t>(r)];
      if (r == 0) {
        EXPECT_THAT(
            end.result,
            AllOf(
                HasSubstr(str("rank ", victim, " has died; ")),
                HasSubstr("the gradients of unit 3"),
                HasSubstr("expected 7, found 0")));
      }
      EXPECT_THAT(
          end.result,
          ::testing::StartsWith(
              str(static_cast<int>(ErrorCode::kPeerLost), " [shm] rank ",
                  victim, " has died")));
      EXPECT_LT(end.ended_at - report.struck_at, 10s) << "rank " << r;
    }
  }
}

// Ranks that end because of it are not taken for the cause, however late a rank looks.
TEST(Waiter, NamesTheCauseAlsoAfterTheOthersHaveEnded) {
  const Table table = waiter_table(3);

  const auto report = test::run_forked(
      table,
      [&](int rank, Peers& peers, ChildLink& link) {
        if (rank == 2) {
          link.reach("here");
        }
        if (rank == 1) {
          return wait_in_vain(table, peers, link, 0, 30s);  // Then rank 1 ends.
        }
        // Looks only after rank 1 has ended, which the end of its channel shows.
        const int process =
            table.segment.at<PeerRecord>(sizeof(PeersHead), 3)[1].pid;
        while (::kill(process, 0) == 0) {
          table.counter(0).sleep_below(1, 1ms);
        }
        return wait_in_vain(table, peers, link, 1, 30s);
      },
      {{.child = 2, .point = "here", .signal = SIGKILL}});

  EXPECT_THAT(report.children[0].result, HasSubstr("rank 2 has died"));
  EXPECT_THAT(report.children[1].result, HasSubstr("rank 2 has died"));
}

TEST(Waiter, AStoppedRankIsNotRespondingForEverybody) {
  const Table table = waiter_table(3);

  const auto report = test::run_forked(
      table,
      [&](int rank, Peers& peers, ChildLink& link) {
        if (rank == 2) {
          link.reach("here");
        }
        // Rank 1 has a long deadline, and learns the trouble from rank 0's wait.
        return wait_in_vain(
            table, peers, link, 2, rank == 0 ? Duration(300ms) : 30s);
      },
      {{.child = 2, .point = "here", .signal = SIGSTOP}});

  for (const std::size_t r : {0U, 1U}) {
    const auto& end = report.children[r];
    EXPECT_THAT(
        end.result,
        AllOf(
            ::testing::StartsWith(
                str(static_cast<int>(ErrorCode::kDeadlineExceeded), " ")),
            HasSubstr(
                "rank 2 is not responding, rank 0 timed out waiting for it")));
    EXPECT_LT(end.ended_at - report.struck_at, 10s);
  }
}

// Rank 0 waits for rank 1, which waits for rank 2, which is stopped.
TEST(Waiter, WhoOnlyWaitsItselfIsNotBlamed) {
  const Table table = waiter_table(3);

  const auto report = test::run_forked(
      table,
      [&](int rank, Peers& peers, ChildLink& link) {
        if (rank == 2) {
          link.reach("here");
        }
        if (rank == 1) {
          return wait_in_vain(table, peers, link, 2, 30s);
        }
        PeerRecord& other =
            table.segment.at<PeerRecord>(sizeof(PeersHead), 3)[1];
        while (std::atomic_ref(other.awaits).load() == 0) {
          table.counter(0).sleep_below(1, 1ms);
        }
        return wait_in_vain(table, peers, link, 1, 300ms);
      },
      {{.child = 2, .point = "here", .signal = SIGSTOP}});

  for (const std::size_t r : {0U, 1U}) {
    EXPECT_THAT(
        report.children[r].result, HasSubstr("rank 2 is not responding"));
  }
}

TEST(Peers, ARingOfWaitsBlamesTheOneThatWasWaitedFor) {
  const Table table = waiter_table(3);
  std::vector<std::unique_ptr<Peers>> peers;
  for (int r = 0; r < 3; ++r) {
    peers.push_back(std::make_unique<Peers>(
        table.peers_memory(), PeersOptions{.rank = r, .ranks = 3}));
    peers.back()->set_awaited((r + 1) % 3);
  }
  EXPECT_THAT(
      peers[0]->blame(1).message(),
      HasSubstr("rank 1 is not responding, rank 0 timed out waiting for it"));
}

// A rank that waits for a message does not say so in its record.
TEST(Peers, ARankDoesNotBlameItself) {
  const Table table = waiter_table(2);
  Peers own(table.peers_memory(), {.rank = 0, .ranks = 2});
  Peers other(table.peers_memory(), {.rank = 1, .ranks = 2});
  other.set_awaited(0);
  EXPECT_THAT(
      own.blame(1).message(),
      HasSubstr("rank 1 is not responding, rank 0 timed out waiting for it"));
}

TEST(Waiter, TheDeadlineCountsFromTheLastProgress) {
  const Table table = waiter_table(2);
  Peers own(table.peers_memory(), {.rank = 0, .ranks = 2});
  // Each reading of the clock takes 10 s, and the deadline is 25 s.
  test::ManualClock clock;
  clock.step = 10s;
  const Waiter waiter(own, clock, {.deadline = 25s, .spin = Duration(0)});
  Counter counter = table.counter(0);
  // Each slice reads the clock twice and every second one sees a step, so that there are always
  // slices without progress, but never two in a row.
  class Slow final : public Clock {
   public:
    explicit Slow(Counter posted) : posted_(posted) {}
    Instant now() const override {
      if (++looks_ % 4 == 2) {
        posted_.advance();
      }
      return now_ += 10s;
    }

   private:
    mutable Counter posted_;
    mutable int looks_ = 0;
    mutable Instant now_{0};
  };
  const Slow slow(counter);
  const Waiter patient(own, slow, {.deadline = 25s, .spin = Duration(0)});

  EXPECT_TRUE(patient.wait(counter, 10, {.rank = 1}).ok());
  EXPECT_EQ(
      waiter.wait(counter, 11, {.rank = 1}).code(),
      ErrorCode::kDeadlineExceeded);
}

TEST(Waiter, WhatADeadRankHasPostedCounts) {
  const Table table = waiter_table(2);

  const auto report = test::run_forked(
      table,
      [&](int rank, Peers& peers, ChildLink& link) {
        if (rank == 1) {
          table.counter(0).post(7);
          link.reach("posted");
        }
        const int process =
            table.segment.at<PeerRecord>(sizeof(PeersHead), 2)[1].pid;
        while (::kill(process, 0) == 0) {
          table.counter(0).sleep_below(8, 1ms);
        }
        EXPECT_EQ(peers.check().code(), ErrorCode::kPeerLost);
        return wait_in_vain(table, peers, link, 1, 30s);
      },
      {{.child = 1, .point = "posted", .signal = SIGKILL}});

  EXPECT_EQ(report.children[0].result, "ok");
  EXPECT_EQ(report.children[0].exit_code, 0);
}

TEST(Waiter, ARankThatLeftIsTroubleOnlyToWhoWaitsForIt) {
  const Table table = waiter_table(3);

  const auto report =
      test::run_forked(table, [&](int rank, Peers& peers, ChildLink& link) {
        if (rank == 2) {
          peers.leave();
          return 0;
        }
        const int process =
            table.segment.at<PeerRecord>(sizeof(PeersHead), 3)[2].pid;
        while (::kill(process, 0) == 0) {
          table.counter(0).sleep_below(1, 1ms);
        }
        const Status look = peers.check();
        link.report(look.message() + "/");
        if (rank == 1) {
          wait_in_vain(table, peers, link, 2, 30s);
        }
        // Otherwise the end of one would be trouble for the other.
        peers.leave();
        return 0;
      });

  EXPECT_EQ(report.children[0].result, "ok/");
  EXPECT_THAT(
      report.children[1].result,
      AllOf(HasSubstr("ok/"), HasSubstr("rank 2 has left; awaited")));
}

TEST(Waiter, GivingUpTellsEverybodyWhy) {
  const Table table = waiter_table(3);
  test::run_threads(table, [&](int rank, Peers& peers) {
    if (rank == 1) {
      peers.give_up("out of memory");
      peers.give_up("something later");
      return;
    }
    const Waiter waiter(peers, kClock, {.deadline = 30s});
    const Status done = waiter.wait(table.counter(0), 1, {.rank = 2 - rank});
    EXPECT_EQ(done.code(), ErrorCode::kAborted);
    EXPECT_THAT(done.message(), HasSubstr("rank 1 gave up: out of memory"));
  });
}

TEST(Waiter, MessagesNameRanksAsTheCallerDoes) {
  const Table table = waiter_table(2);
  Peers own(table.peers_memory(), {.rank = 0, .ranks = 2, .names = {12, 13}});
  EXPECT_THAT(own.blame(1).message(), HasSubstr("rank 13 is not responding"));
}

// The process that now has the id started at another time than the rank did.
TEST(Peers, ARecycledProcessIdIsADeadRank) {
  const Table table = waiter_table(2);
  Peers own(table.peers_memory(), {.rank = 0, .ranks = 2});
  own.enter();
  const auto records = table.segment.at<PeerRecord>(sizeof(PeersHead), 2);
  records[1] = records[0];
  records[1].pid = ::getppid();
  records[1].start_ticks = process_start_ticks(::getppid());
  own.watch().throw_if_failed();
  EXPECT_TRUE(own.check().ok());

  ++records[1].start_ticks;
  Peers again(table.peers_memory(), {.rank = 0, .ranks = 2});
  again.watch().throw_if_failed();
  EXPECT_EQ(again.check().message(), "[shm] rank 1 has died");
}

TEST(Peers, AnotherNamespaceOfProcessIdsIsRefused) {
  const Table table = waiter_table(2);
  Peers own(table.peers_memory(), {.rank = 0, .ranks = 2});
  own.enter();
  PeerRecord& other = table.segment.at<PeerRecord>(sizeof(PeersHead), 2)[1];
  other.pid = 1;
  other.pid_namespace = 1;
  const Status refused = own.watch();
  EXPECT_EQ(refused.code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("rank 0 and rank 1"));
}

}  // namespace
}  // namespace sherd::shm
