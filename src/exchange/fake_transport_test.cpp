// SPDX-License-Identifier: Apache-2.0
#include "exchange/fake_transport_testing.h"

#include <atomic>
#include <set>
#include <thread>
#include <gmock/gmock.h>
#include <torch/torch.h>
#include "support/fake_ranks.h"
#include "world/collectives.h"

namespace sherd::exchange {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using test::FakeRank;
using test::run_fake_ranks;
using testing::HasSubstr;

at::Tensor number(double value) { return torch::full({3}, value); }

TEST(FakeTransport, MessagesOfOnePeerAndTagKeepOrder) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    run_fake_ranks(
        2, {.seed = seed, .delay_max = microseconds(500)}, [](FakeRank& self) {
          auto transport = self.network.transport(self.rank, "a");
          for (int i = 0; i < 20; ++i) {
            if (self.rank == 0) {
              transport->send(number(i), 1, i % 2)
                  ->wait("send")
                  .throw_if_failed();
            } else {
              auto into = number(-1);
              transport->receive(into, 0, i % 2)->wait("n").throw_if_failed();
              EXPECT_EQ(into[0].item<double>(), i);
            }
          }
          self.barrier.arrive_and_wait();
        });
  }
}

TEST(FakeTransport, LinksOfDifferentNamesDoNotMix) {
  run_fake_ranks(2, FakeOptions{}, [](FakeRank& self) {
    auto a = self.network.transport(self.rank, "a");
    auto b = self.network.transport(self.rank, "b");
    const int peer = 1 - self.rank;
    (void)a->send(number(1), peer, 0);
    (void)b->send(number(2), peer, 0);
    auto from_b = number(0);
    auto from_a = number(0);
    b->receive(from_b, peer, 0)->wait("b").throw_if_failed();
    a->receive(from_a, peer, 0)->wait("a").throw_if_failed();
    EXPECT_EQ(from_a[0].item<double>(), 1);
    EXPECT_EQ(from_b[0].item<double>(), 2);
    self.barrier.arrive_and_wait();
  });
}

TEST(FakeTransport, MessagesOfDifferentTagsOvertakeEachOther) {
  // In which order tags come first depends on the seed.
  std::set<bool> seen;
  for (std::uint64_t seed = 1; seed <= 20 && seen.size() < 2; ++seed) {
    FakeNetwork network(2, {.seed = seed, .delay_max = milliseconds(20)});
    auto from = network.transport(0, "a");
    auto to = network.transport(1, "a");
    (void)from->send(number(1), 1, 1);
    (void)from->send(number(2), 1, 2);
    auto first = number(0);
    auto second = number(0);
    const auto one = to->receive(first, 0, 1);
    const auto two = to->receive(second, 0, 2);
    std::atomic<int> ended = 0;
    bool second_was_first = false;
    std::jthread other([&] {
      two->wait("2").throw_if_failed();
      second_was_first = ended++ == 0;
    });
    one->wait("1").throw_if_failed();
    ++ended;
    other.join();
    seen.insert(second_was_first);
    EXPECT_EQ(first[0].item<double>(), 1);
    EXPECT_EQ(second[0].item<double>(), 2);
  }
  EXPECT_EQ(seen.size(), 2U);
}

// As a connection that breaks: no later message comes without the earlier ones.
TEST(FakeTransport, WhenARankGivesUpAMessageIsLostWithAllThatFollow) {
  const SteadyClock clock;
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    FakeNetwork network(2, {.seed = seed, .delay_max = milliseconds(2)});
    auto from = network.transport(0, "a");
    auto to = network.transport(1, "a");
    const auto sent = clock.now();
    (void)from->send(torch::zeros({1}), 1, 1);
    (void)from->send(torch::zeros({2}), 1, 1);
    const auto first = to->receive(torch::empty({1}), 0, 1);
    const auto second = to->receive(torch::empty({2}), 0, 1);
    while (clock.now() < sent + milliseconds(1)) {
      std::this_thread::yield();
    }
    from->abandon({ErrorCode::kAborted, "it had enough"});
    const bool first_came = first->wait("the first").ok();
    const bool second_came = second->wait("the second").ok();
    EXPECT_TRUE(first_came || !second_came) << "seed " << seed;
  }
}

TEST(FakeTransport, AnEmptyMessageIsDoneAtOnce) {
  FakeNetwork network(2, {});
  auto transport = network.transport(0, "a");
  auto none = torch::empty({0});
  const auto receive = transport->receive(none, 1, 0);
  receive->wait("nothing").throw_if_failed();
  transport->send(none, 1, 0)->wait("nothing").throw_if_failed();
  EXPECT_EQ(network.operations(0), 2);
}

TEST(FakeTransport, AllGatherGivesTextsOfAnyLengthByRank) {
  run_fake_ranks(
      4, {.seed = 3, .delay_max = microseconds(100)}, [](FakeRank& self) {
        auto transport = self.network.transport(self.rank, "a");
        const auto count = static_cast<std::size_t>(self.rank * 5);
        const auto all = world::Collectives(*transport, "g")
                             .all_gather_texts(std::string(count, 'x'))
                             .value();
        ASSERT_EQ(all.size(), 4U);
        for (std::size_t r = 0; r < 4; ++r) {
          EXPECT_EQ(all[r], std::string(r * 5, 'x'));
        }
        self.barrier.arrive_and_wait();
      });
}

TEST(FakeTransport, TheDeadlineNamesThePeer) {
  FakeNetwork network(3, {.deadline = milliseconds(20)});
  auto transport = network.transport(0, "a");
  auto into = number(0);
  const auto late = transport->receive(into, 2, 0)->wait("the weather");
  EXPECT_EQ(late.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_THAT(late.message(), HasSubstr("rank 2"));
  EXPECT_THAT(late.message(), HasSubstr("the weather"));
  // Who waits for rank 0, which gives up, hears of rank 2.
  transport->abandon(late);
  auto other = network.transport(1, "a");
  const auto told = other->receive(into, 0, 0)->wait("an answer");
  EXPECT_EQ(told.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(told.message(), HasSubstr("rank 2 did not answer"));
}

TEST(FakeTransport, ALostRankEndsEveryWaitAndIsNamedFirst) {
  FakeNetwork network(4, {.lost_rank = 3, .lost_at = 2});
  auto lost = network.transport(3, "a");
  (void)lost->send(number(1), 0, 0);
  (void)lost->send(number(2), 0, 0);
  (void)lost->send(number(3), 0, 0);  // Its operation number 2.
  auto other = network.transport(1, "a");
  auto into = number(0);
  const auto waiting = other->receive(into, 2, 0)->wait("rank 2, who is well");
  EXPECT_EQ(waiting.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(waiting.message(), HasSubstr("rank 3 was lost"));
  // Not the lowest of those that are gone by now.
  network.transport(0, "a")->abandon(waiting);
  EXPECT_THAT(
      other->receive(into, 0, 0)->wait("rank 0").message(),
      HasSubstr("rank 3 was lost"));
}

TEST(FakeTransport, GivingUpFailsOnlyThoseWhoWaitForIt) {
  FakeNetwork network(3, {});
  auto from = network.transport(0, "a");
  (void)from->send(number(5), 1, 0);
  from->abandon({ErrorCode::kFailedPrecondition, "done with it"});
  auto to = network.transport(1, "a");
  auto into = number(0);
  to->receive(into, 0, 0)->wait("what has arrived").throw_if_failed();
  EXPECT_EQ(into[0].item<double>(), 5);
  const auto status = to->receive(into, 0, 0)->wait("one more");
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("done with it"));
  auto third = network.transport(2, "a");
  (void)third->send(number(6), 1, 0);
  to->receive(into, 2, 0)->wait("a third").throw_if_failed();
  EXPECT_EQ(into[0].item<double>(), 6);
}

TEST(FakeTransport, WhatIsUnderWayWhenItsSenderGivesUpIsLost) {
  FakeNetwork network(
      2,
      {.seed = 1,
       .delay_max = std::chrono::hours(1),
       .deadline = std::chrono::hours(1)});
  auto from = network.transport(0, "a");
  (void)from->send(number(5), 1, 0);
  from->abandon({ErrorCode::kFailedPrecondition, "done with it"});
  auto to = network.transport(1, "a");
  auto into = number(0);
  EXPECT_EQ(to->receive(into, 0, 0)->wait("it").code(), ErrorCode::kPeerLost);
}

TEST(FakeTransport, ADestroyedLinkIsARankThatLeftAfterItsLastMessage) {
  FakeNetwork network(2, {.seed = 1, .delay_max = milliseconds(30)});
  auto to = network.transport(1, "a");
  auto from = network.transport(0, "a");
  (void)from->send(number(5), 1, 0);
  from.reset();
  auto into = number(0);
  to->receive(into, 0, 0)->wait("the last one").throw_if_failed();
  EXPECT_EQ(into[0].item<double>(), 5);
  EXPECT_THAT(
      to->receive(into, 0, 0)->wait("anything").message(),
      HasSubstr("rank 0 left"));
}

}  // namespace
}  // namespace sherd::exchange
