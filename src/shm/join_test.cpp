// SPDX-License-Identifier: Apache-2.0
#include "shm/join.h"

#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <sstream>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "shm/available_memory.h"
#include "shm/join_messages.h"
#include "shm/testing.h"
#include "shm/unix_socket.h"
#include "shm/waiter.h"

namespace sherd::shm {
namespace {

using namespace std::chrono_literals;
using test::ChildLink;
using test::index;
using test::kClock;
using test::TestStore;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

SegmentJoinOptions options_of(int rank, int ranks, TestStore& store) {
  return {
      .peers = {.rank = rank, .ranks = ranks},
      .store = store.store(),
      .segment = {.bytes = 8192},
      .deadline = 20s};
}

std::string text_of(const Status& status) {
  return status.ok()
      ? "ok"
      : str(static_cast<int>(status.code()), " ", status.message());
}

std::string code_text(ErrorCode code) {
  return str(static_cast<int>(code), " ");
}

// Joins and reports the outcome as text.
int join_and_report(
    const SegmentJoinOptions& options,
    ChildLink& link,
    const Clock& clock = kClock) {
  link.report(text_of(join_segment(options, clock).status()));
  return 0;
}

TEST(Join, AllRanksShareTheSameMemory) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    TestStore store;
    test::expect_all_ok(test::run_apart(ranks, [&](int rank, ChildLink&) {
      HostSegment host =
          join_segment(options_of(rank, ranks, store), kClock).value();
      EXPECT_EQ(host.bytes(), 8192U);
      EXPECT_EQ(host.at<unsigned char>(0, 8192)[8191], 0);
      const auto cells = host.at<CounterCell>(0, index(ranks));
      const auto words = host.at<int>(4096, index(ranks));
      words[index(rank)] = rank + 100;
      Counter(cells[index(rank)]).post(1);
      const Waiter waiter(host.peers(), kClock, {.deadline = 30s});
      for (int r = 0; r < ranks; ++r) {
        if (r != rank) {
          waiter.wait(Counter(cells[index(r)]), 1, {.rank = r})
              .throw_if_failed();
        }
        EXPECT_EQ(words[index(r)], r + 100);
      }
      host.peers().leave();
      return 0;
    }));
  }
}

TEST(Join, NothingHasANameOnceAllAreIn) {
  TestStore store;
  const auto report = test::run_apart(2, [&](int rank, ChildLink& link) {
    const HostSegment host =
        join_segment(options_of(rank, 2, store), kClock).value();
    std::istringstream maps(*read_small_file("/proc/self/maps"));
    std::string line;
    while (std::getline(maps, line)) {
      if (line.find(" rw-s ") != std::string::npos) {
        link.report(line.substr(line.rfind("  ") + 2) + "\n");
      }
    }
    return 0;
  });

  test::expect_all_ok(report);
  for (const auto& end : report.children) {
    const std::string unnamed = "/memfd:sherd-segment (deleted)\n";
    // That of the store, and the joined one.
    EXPECT_EQ(end.result, unnamed + unnamed);
  }
  const std::string address = store.get(Duration(0)).value();
  EXPECT_THAT(address, StartsWith("sherd-"));
  EXPECT_THAT(*read_small_file("/proc/net/unix"), Not(HasSubstr(address)));
}

// A clock that kills the process when it is read for the n-th time: every reading is a point in the
// middle of joining.
class DeadlyClock final : public Clock {
 public:
  explicit DeadlyClock(int readings) : left_(readings) {}
  Instant now() const override {
    if (left_ == 1) {
      ::raise(SIGKILL);
    }
    --left_;
    return kClock.now();
  }

 private:
  mutable int left_;
};

// At whatever point a rank dies, every other rank gets an error that names it: from joining, or
// else from the first wait.
TEST(Join, ARankThatDiesAtAnyPointIsNamedOnAllOthers) {
  for (const int victim : {0, 1, 2}) {
    bool got_through = false;
    for (int reading = 1; !got_through; ++reading) {
      ASSERT_LT(reading, 200);
      TestStore store;
      const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
        const DeadlyClock deadly(rank == victim ? reading : 0);
        SegmentJoinOptions options = options_of(rank, 3, store);
        options.deadline = 3s;
        Result<HostSegment> joined = join_segment(options, deadly);
        if (rank == victim) {
          link.report("through");
          ::raise(SIGKILL);
        }
        if (!joined.ok()) {
          link.report(text_of(joined.status()));
          return 0;
        }
        HostSegment host = std::move(joined).value();
        const Waiter waiter(host.peers(), kClock, {.deadline = 30s});
        const Counter never(host.at<CounterCell>(0, 1)[0]);
        link.report(text_of(waiter.wait(never, 1, {.rank = victim})));
        return 0;
      });
      for (int r = 0; r < 3; ++r) {
        const auto& end = report.children[index(r)];
        if (r == victim) {
          got_through = end.result == "through";
          EXPECT_EQ(end.signal, SIGKILL);
          continue;
        }
        EXPECT_EQ(end.exit_code, 0) << end.output;
        EXPECT_THAT(end.result, Not(StartsWith("ok")));
        EXPECT_THAT(end.result, HasSubstr(str("rank ", victim)))
            << "on rank " << r << ", killed at reading " << reading;
      }
    }
  }
}

TEST(Join, ARankThatDiesInTheMiddleEndsItForAllAtOnce) {
  TestStore store;
  const auto report = test::run_apart(
      4,
      [&](int rank, ChildLink& link) {
        const SegmentJoinOptions options = options_of(rank, 4, store);
        if (rank != 3) {
          return join_and_report(options, link);
        }
        UnixConnection host =
            UnixConnection::connect(
                store.get(20s).value(), kClock, kClock.now() + 20s)
                .value();
        host.send(JoinRequest{.rank = 3, .ranks = 4, .bytes = 8192}.to_text())
            .throw_if_failed();
        host.receive(kClock, kClock.now() + 20s).value();
        link.reach("greeted");
        return 1;
      },
      {{.child = 3, .point = "greeted", .signal = SIGKILL}});

  for (const std::size_t r : {0U, 1U, 2U}) {
    EXPECT_THAT(
        report.children[r].result,
        AllOf(
            StartsWith(code_text(ErrorCode::kPeerLost)),
            HasSubstr("rank 3 has died")));
    EXPECT_LT(report.children[r].ended_at - report.struck_at, 10s);
  }
}

TEST(Join, ARankThatDoesNotComeIsNamedOnAllOthers) {
  TestStore store;
  const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 3, store);
    options.deadline = 3s;
    return rank == 2 ? 0 : join_and_report(options, link);
  });

  for (const std::size_t r : {0U, 1U}) {
    EXPECT_THAT(
        report.children[r].result,
        AllOf(
            StartsWith(code_text(ErrorCode::kDeadlineExceeded)),
            HasSubstr("within 3 s, not responding: rank 2")));
  }
}

TEST(Join, ALeaderThatStopsIsNotResponding) {
  TestStore store;
  const auto report = test::run_apart(
      2,
      [&](int rank, ChildLink& link) {
        SegmentJoinOptions options = options_of(rank, 2, store);
        options.deadline = 200ms;
        if (rank == 0) {
          options.store.put = [&](const std::string& text) {
            store.put(text);
            link.reach("offered");
            return Status();
          };
        } else {
          store.get(20s).value();  // The deadline is not for the offer to come.
        }
        return join_and_report(options, link);
      },
      {{.child = 0, .point = "offered", .signal = SIGSTOP}});

  EXPECT_THAT(
      report.children[1].result,
      AllOf(
          StartsWith(code_text(ErrorCode::kDeadlineExceeded)),
          HasSubstr("rank 0 is not responding")));
}

// The offer that a follower reads may be outdated when it connects, with the next one already
// there: the leader is not mistaken for dead.
TEST(Join, AFollowerOfAnOfferThatWasReplacedTakesTheNext) {
  TestStore store;
  const auto report = test::run_apart(2, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 2, store);
    bool first = true;
    if (rank == 1) {
      options.store.get = [&](Duration at_most) {
        return std::exchange(first, false)
            ? Result<std::string>(std::string("sherd-nobody"))
            : store.get(std::max<Duration>(at_most, 20s));
      };
    }
    return join_and_report(options, link);
  });
  test::expect_all_ok(report);
  EXPECT_EQ(report.children[0].result, "ok");
  EXPECT_EQ(report.children[1].result, "ok");
}

// As when a rank of another group is lost: the leader gave up for that reason and has taken the
// store with it before this rank could read why.
TEST(Join, WhatBroughtTheLeaderDownIsNamedAlthoughTheStoreIsGone) {
  SegmentJoinOptions options{.peers = {.rank = 1, .ranks = 2}};
  options.segment.bytes = 8192;
  bool first = true;
  options.store.get = [&](Duration) -> Result<std::string> {
    return std::exchange(first, false)
        ? Result<std::string>(std::string("sherd-nobody"))
        : Status(ErrorCode::kPeerLost, "rank 3 was lost");
  };
  const Status failed = join_segment(options, kClock).status();
  EXPECT_EQ(failed.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(failed.message(), HasSubstr("rank 0 is gone: rank 3 was lost"));
}

TEST(Join, ALeaderThatNeverOffersIsNamed) {
  TestStore store;
  const auto report = test::run_apart(2, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 2, store);
    options.deadline = 100ms;
    options.peers.names = {6, 7};
    return rank == 0 ? 0 : join_and_report(options, link);
  });
  EXPECT_THAT(
      report.children[1].result,
      HasSubstr("expected rank 6 to offer one within 0.1 s, found none: no "
                "such key"));
}

TEST(Join, MemoryThatCannotBeHadIsTheSameErrorOnAllRanks) {
  TestStore store;
  const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 3, store);
    options.segment.bytes = std::size_t{1} << 50U;
    return join_and_report(options, link);
  });

  for (const auto& end : report.children) {
    EXPECT_THAT(
        end.result,
        AllOf(
            StartsWith(code_text(ErrorCode::kUnavailable)),
            HasSubstr("bytes of memory, found"), HasSubstr("available (")));
  }
}

TEST(Join, OptionsThatDifferAreNamedOnAllRanks) {
  TestStore store;
  const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 3, store);
    options.peers.names = {4, 5, 6};
    if (rank == 2) {
      options.segment.bytes = 4096;
    }
    return join_and_report(options, link);
  });

  for (const auto& end : report.children) {
    EXPECT_THAT(
        end.result,
        AllOf(
            StartsWith(code_text(ErrorCode::kPeerMismatch)),
            HasSubstr("rank 4 expected bytes: 8192, found 4096 on rank 6")));
  }
}

TEST(Join, TwoProcessesOfOneRankAreRefused) {
  TestStore store;
  const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
    SegmentJoinOptions options = options_of(rank, 3, store);
    options.peers.rank = rank == 2 ? 1 : rank;
    return join_and_report(options, link);
  });
  for (const auto& end : report.children) {
    EXPECT_THAT(
        end.result,
        AllOf(
            StartsWith(code_text(ErrorCode::kPeerMismatch)),
            HasSubstr("once each, found one more that says it has place 1")));
  }
}

TEST(Join, AStrangerDoesNotDisturb) {
  TestStore store;
  const test::Table table(1, 1, 0);
  const auto report = test::run_apart(3, [&](int rank, ChildLink& link) {
    if (rank == 2) {
      const std::string address = store.get(20s).value();
      UnixConnection host =
          UnixConnection::connect(address, kClock, kClock.now() + 20s).value();
      host.send("GET / HTTP/1.1").throw_if_failed();
      const auto end = host.receive(kClock, kClock.now() + 20s);
      table.counter(0).post(1);
      link.report("refused");
      return end.status().code() == ErrorCode::kPeerLost ? 0 : 1;
    }
    SegmentJoinOptions options = options_of(rank, 2, store);
    if (rank == 1) {
      // Arrives when the stranger has been refused, with a silent connection before it.
      options.store.get = [&](Duration at_most) {
        const Instant limit = kClock.now() + 20s;
        while (!table.counter(0).reached(1) && kClock.now() < limit) {
          table.counter(0).sleep_below(1, 1s);
        }
        auto address = store.get(at_most);
        UnixConnection mute =
            UnixConnection::connect(address.value(), kClock, kClock.now() + 20s)
                .value();
        return address;
      };
    }
    return join_and_report(options, link);
  });

  test::expect_all_ok(report);
  EXPECT_EQ(report.children[0].result, "ok");
  EXPECT_EQ(report.children[1].result, "ok");
}

TEST(Join, ASingleRankNeedsNoStore) {
  HostSegment alone = join_segment({.segment = {.bytes = 100}}, kClock).value();
  EXPECT_EQ(alone.bytes(), 100U);
  EXPECT_TRUE(alone.peers().check().ok());
}

TEST(Join, OptionsThatMakeNoSenseAreRefused) {
  for (const SegmentJoinOptions& wrong : {
           SegmentJoinOptions{.peers = {.rank = 1, .ranks = 1}},
           SegmentJoinOptions{.peers = {.rank = -1, .ranks = 1}},
           SegmentJoinOptions{.peers = {.rank = 0, .ranks = 0}},
           SegmentJoinOptions{
               .peers = {.rank = 0, .ranks = 1, .names = {1, 2}}},
           SegmentJoinOptions{.segment = {.bytes = ~std::size_t{0}}},
       }) {
    EXPECT_EQ(
        join_segment(wrong, kClock).status().code(),
        ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sherd::shm
