// SPDX-License-Identifier: Apache-2.0
#include "world/rounds.h"

#include <csignal>
#include <future>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include "base/check.h"
#include "base/clock.h"
#include "base/process.h"
#include "support/error_of.h"
#include "world/rendezvous.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;
using StorePtr = c10::intrusive_ptr<c10d::Store>;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kDeadline = 20s;

StorePtr agents_store() { return c10::make_intrusive<c10d::HashStore>(); }

// A rank on a host of its own, whose process nobody else can look at.
RankRecord far_rank(int rank, int size, const std::string& start) {
  return RankRecord::of_this_process(
      rank, size, -1, {.hostname = str("host-", rank, start), .boot_id = "b"});
}

std::future<Meeting> meets(
    const StorePtr& agents,
    const RankRecord& mine,
    std::chrono::milliseconds deadline = kDeadline) {
  return std::async(std::launch::async, [=] {
    return meet_in_new_round(agents, mine, deadline);
  });
}

std::string error_of(std::future<Meeting> meeting) {
  return test::error_of([&] { meeting.get(); });
}

// Until rank `rank` has come to round `number`.
void await_rank(const StorePtr& agents, int number, int rank) {
  agents->wait({str("round-", number, "/sherd/rank/", rank)}, 20s);
}

void expect_met(std::future<Meeting> meeting, const std::string& start) {
  const auto records = meeting.get().records;
  for (const RankRecord& record : records) {
    EXPECT_EQ(record.host.hostname, str("host-", record.rank, start));
  }
}

// Nobody closes: the ranks of each start were killed.
TEST(Rounds, RanksOfTwoStartsDoNotMeet) {
  const auto agents = agents_store();
  for (const std::string start : {"a", "b", "c"}) {
    auto one = meets(agents, far_rank(1, 2, start));
    auto zero = meets(agents, far_rank(0, 2, start));
    expect_met(std::move(zero), start);
    expect_met(std::move(one), start);
  }
}

TEST(Rounds, ARankLeavesOneInWhichItsPredecessorNeverCame) {
  const auto agents = agents_store();
  EXPECT_THAT(
      error_of(meets(agents, far_rank(0, 3, "a"), 1ms)),
      HasSubstr("found 1: ranks 1, 2 did not arrive"));
  // This one was killed while it waited for the verdict.
  agents->add("sherd/round", 1);
  agents->set("round-2/sherd/rank/0", far_rank(0, 3, "b").to_text());

  auto one = meets(agents, far_rank(1, 3, "c"));
  await_rank(agents, 2, 1);
  auto zero = meets(agents, far_rank(0, 3, "c"));
  await_rank(agents, 3, 1);
  auto two = meets(agents, far_rank(2, 3, "c"));

  expect_met(std::move(zero), "c");
  expect_met(std::move(one), "c");
  expect_met(std::move(two), "c");
}

TEST(Rounds, AWorldMayGrowAndShrink) {
  const auto agents = agents_store();
  for (const int size : {2, 3, 2}) {
    const std::string start = str("-", agents->add("starts", 1));
    std::vector<std::future<Meeting>> all;
    for (int rank = size - 1; rank >= 0; --rank) {
      all.push_back(meets(agents, far_rank(rank, size, start)));
    }
    for (auto& meeting : all) {
      expect_met(std::move(meeting), start);
    }
  }
}

TEST(Rounds, ASecondRank0EndsTheWaitOfTheFirst) {
  const auto agents = agents_store();
  auto first = meets(agents, far_rank(0, 2, "a"));
  await_rank(agents, 1, 0);
  auto second = meets(agents, far_rank(0, 2, "b"));
  await_rank(agents, 2, 0);
  auto one = meets(agents, far_rank(1, 2, "b"));

  EXPECT_THAT(
      error_of(std::move(first)),
      AllOf(
          HasSubstr("found a second rank 0"), HasSubstr("on host-0a beside"),
          HasSubstr("on host-0b")));
  expect_met(std::move(second), "b");
  expect_met(std::move(one), "b");
}

TEST(Rounds, ASecondProcessOfARankIsRefusedWhenNoNewRoundBegins) {
  const auto agents = agents_store();
  auto zero = meets(agents, far_rank(0, 2, "a"));
  auto one = meets(agents, far_rank(1, 2, "a"));
  zero.get();
  one.get();

  EXPECT_THAT(
      error_of(meets(agents, far_rank(1, 2, "b"), 50ms)),
      HasSubstr("found a second rank 1"));
  EXPECT_THAT(
      error_of(meets(agents, far_rank(1, 3, "b"), 50ms)),
      HasSubstr("found a second rank 1"));
  EXPECT_THAT(
      error_of(meets(agents, far_rank(2, 3, "b"), 50ms)),
      HasSubstr("rank 0 says 2, rank 2 says 3"));
}

// Rank 0 of a world that was not closed, in a process of this host.
class OldRank0 {
 public:
  explicit OldRank0(c10d::Store& agents)
      : child_(spawn_process(
            {.path = "/bin/sleep",
             .command = {"sleep", "60"},
             .environment = {}},
            {})) {
    RankRecord record = RankRecord::of_this_process(0, 1, -1, here());
    record.pid = child_.process.value().pid();
    record.start_ticks = process_start_ticks(record.pid);
    agents.add("sherd/round", 1);
    agents.set("round-1/sherd/rank/0", record.to_text());
  }

  // Its parent does not reap it, as in a container whose first process does not.
  void kill() { child_.process->signal_process(SIGKILL); }
  void kill_and_reap() { child_.process->kill_and_reap(); }

  static HostIdentity here() { return HostIdentity::of_this_process(); }

 private:
  SpawnResult child_;
};

TEST(Rounds, ASecondProcessOnOneHostIsRefusedSoon) {
  const auto agents = agents_store();
  OldRank0 old(*agents);
  const SteadyClock clock;
  const Instant start = clock.now();

  EXPECT_THAT(
      error_of(meets(
          agents, RankRecord::of_this_process(0, 1, -1, OldRank0::here()),
          60s)),
      HasSubstr("found a second rank 0"));

  const Duration waited = clock.now() - start;
  EXPECT_GE(waited, 5s);
  EXPECT_LT(waited, 40s);
  EXPECT_EQ(agents->add("sherd/round", 0), 1);
  old.kill_and_reap();
}

TEST(Rounds, AFormerProcessHasAMomentToEnd) {
  const auto agents = agents_store();
  OldRank0 old(*agents);
  auto zero =
      meets(agents, RankRecord::of_this_process(0, 1, -1, OldRank0::here()));
  EXPECT_EQ(zero.wait_for(100ms), std::future_status::timeout);

  old.kill();

  EXPECT_EQ(zero.get().records.size(), 1U);
  EXPECT_EQ(agents->add("sherd/round", 0), 2);
  old.kill_and_reap();
}

TEST(Rounds, SayThatRank0DidNotArrive) {
  EXPECT_THAT(
      error_of(meets(agents_store(), far_rank(1, 2, "a"), 50ms)),
      HasSubstr("rank 1 expected rank 0 in the launcher's store within"));
}

TEST(Rounds, AClosedWorldIsFollowedByAnother) {
  const auto agents = agents_store();
  for (int i = 0; i < 3; ++i) {
    auto one = meets(agents, far_rank(1, 2, "a"));
    auto zero = meets(agents, far_rank(0, 2, "a"));
    end_round(*zero.get().store);
    one.get();
  }
  EXPECT_EQ(agents->add("sherd/round", 0), 3);
}

}  // namespace
}  // namespace sherd::world
