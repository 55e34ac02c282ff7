// SPDX-License-Identifier: Apache-2.0
#include "world/transport.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/run_main.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/torch.h>
#include "support/ranks.h"
#include "world/c10d_transport.h"
#include "world/collectives.h"
#include "world/world_impl.h"

namespace sherd::world {
namespace {

using namespace std::chrono_literals;
using test::expect_all_ok;
using test::RankOptions;
using test::RankReport;
using test::run_ranks;

std::vector<int> all_ranks(const World& world) {
  std::vector<int> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class CommunicatorSizes : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorSizes, MovesMessagesAroundTheRing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto comm = make_c10d_transport(world, "ring", all_ranks(world));
    ASSERT_EQ(comm->size(), world.size());
    ASSERT_EQ(comm->index(), world.rank());
    if (comm->size() == 1) {
      return;
    }
    const int next = (comm->index() + 1) % comm->size();
    const int last = (comm->index() + comm->size() - 1) % comm->size();
    const auto mine = torch::full({1000}, comm->index(), torch::kLong);
    auto theirs = torch::zeros({1000}, torch::kLong);
    const auto out = comm->send(mine, next, 5);
    const auto in = comm->receive(theirs, last, 5);
    in->wait("ring").throw_if_failed();
    out->wait("ring").throw_if_failed();
    EXPECT_TRUE(theirs.equal(torch::full({1000}, last, torch::kLong)));
  }));
}

TEST_P(CommunicatorSizes, CollectivesGiveEveryRankTheSame) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto comm = make_c10d_transport(world, "c", all_ranks(world));
    const int w = world.size();
    for (const std::int64_t n : {0, 1, 5, 1000, 100003}) {
      auto t = torch::arange(n, torch::kFloat) + world.rank();
      Collectives(*comm, "sum").all_reduce(t, 1.0).throw_if_failed();
      EXPECT_TRUE(
          t.equal(torch::arange(n, torch::kFloat) * w + w * (w - 1) / 2));
    }
    for (int root = 0; root < w; ++root) {
      auto b = torch::full({7}, world.rank(), torch::kInt);
      Collectives(*comm, "b").broadcast({b}, root).throw_if_failed();
      EXPECT_TRUE(b.equal(torch::full({7}, root, torch::kInt)));
    }
    const auto all = Collectives(*comm, "g")
                         .all_gather_texts(std::string(world.rank() * 3, 'x'))
                         .value();
    ASSERT_EQ(all.size(), static_cast<std::size_t>(w));
    for (int r = 0; r < w; ++r) {
      EXPECT_EQ(all[r], std::string(r * 3, 'x'));
    }
    world.barrier();
  }));
}

// Every rank starts many sends and receives of all sizes with every other rank, waits in an order
// of its own, and polls some of them before.
TEST_P(CommunicatorSizes, ManyMessagesInAnyOrderDoNotBlockEachOther) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    constexpr int kMessages = 40;
    constexpr int kTags = 7;
    constexpr std::array<std::int64_t, 6> kSizes{0, 1, 3, 1000, 70000, 600000};
    const auto comm = make_c10d_transport(world, "c", all_ranks(world));
    struct Message {
      std::unique_ptr<Transfer> transfer;
      at::Tensor tensor;
      double expected;
    };
    const auto value = [](int from, int to, int i) {
      return from * 10000 + to * 1000 + i;
    };
    std::mt19937 random(static_cast<unsigned>(world.rank()));
    std::vector<Message> messages;
    for (int i = 0; i < kMessages; ++i) {
      // Messages of one (peer, tag) keep their order, so both sides start them in the same one; the
      // order of peers differs from rank to rank.
      std::vector<int> peers = all_ranks(world);
      std::erase(peers, world.rank());
      std::shuffle(peers.begin(), peers.end(), random);
      for (const int peer : peers) {
        const auto n = kSizes[static_cast<std::size_t>(i) % kSizes.size()];
        const int v = value(world.rank(), peer, i);
        auto out = torch::full({n}, v, torch::kFloat);
        auto in = torch::zeros({n}, torch::kFloat);
        if (random() % 2 == 0) {
          messages.push_back({comm->send(out, peer, i % kTags), out, 1.0 * v});
          messages.push_back(
              {comm->receive(in, peer, i % kTags), in,
               1.0 * value(peer, world.rank(), i)});
        } else {
          messages.push_back(
              {comm->receive(in, peer, i % kTags), in,
               1.0 * value(peer, world.rank(), i)});
          messages.push_back({comm->send(out, peer, i % kTags), out, 1.0 * v});
        }
      }
    }
    std::shuffle(messages.begin(), messages.end(), random);
    for (Message& m : messages) {
      m.transfer->wait("message").throw_if_failed();
      EXPECT_TRUE(m.tensor.eq(m.expected).all().item<bool>());
    }
  }));
}

TEST(CommunicatorWaits, OfAnotherThreadAreEndedByAbandon) {
  expect_all_ok(run_ranks(
      2,
      [](World world) {
        const auto comm = make_c10d_transport(world, "c", {0, 1});
        Collectives(*comm, "start")
            .all_gather_texts("")
            .status()
            .throw_if_failed();
        test::let_others_pass(world, 1);
        if (world.rank() == 1) {
          auto never = torch::zeros({10});
          const auto pending = comm->receive(never, 0, 1);
          Status status;
          std::jthread waiter([&] { status = pending->wait("nothing"); });
          comm->abandon({ErrorCode::kUnavailable, "it had enough"});
          waiter.join();
          EXPECT_THAT(status.message(), testing::HasSubstr("it had enough"));
          return;
        }
        auto never = torch::zeros({10});
        const auto pending = comm->receive(never, 1, 1);
        EXPECT_THAT(
            pending->wait("a message").message(),
            testing::HasSubstr("it had enough"));
      },
      {.close_world = false}));
}

// Rank 1 has sent all that rank 0 needs of it before it dies.
TEST(CommunicatorWaits, FindWhatHasArrivedBeforeALoss) {
  const auto report = run_ranks(
      2,
      [](World world, test::Rank& self) {
        const auto comm = make_c10d_transport(world, "c", {0, 1});
        auto last = torch::full({10}, world.rank());
        auto sign = torch::zeros({1});
        if (world.rank() == 1) {
          Transfers sent;
          sent.push_back(comm->send(last, 0, 1));
          sent.push_back(comm->send(sign, 0, 2));
          wait_all(sent, "what rank 0 needs").throw_if_failed();
          test::let_others_pass(world, 1);
          self.reach("here");
        }
        const auto arrives = comm->receive(last, 1, 1);
        // It comes over the same connection, after the other one.
        const auto came = comm->receive(sign, 1, 2);
        came->wait("the sign").throw_if_failed();
        test::let_others_pass(world, 1);
        ASSERT_TRUE(world.impl()->watch->wait_lost(20s));
        arrives->wait("the last message").throw_if_failed();
        EXPECT_TRUE(last.eq(1).all().item<bool>());
        const auto never = comm->receive(sign, 1, 3);
        EXPECT_THAT(
            never->wait("another").message(),
            testing::HasSubstr("rank 1 was lost: it died"));
      },
      {.strikes = {{.child = 1, .point = "here", .signal = SIGKILL}},
       .close_world = false});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

TEST(CommunicatorWaits, EndWhenTheProgramIsInterruptedAndPeersHearOfIt) {
  expect_all_ok(run_ranks(
      2,
      [](World world) {
        const auto comm = make_c10d_transport(world, "c", {0, 1});
        Collectives(*comm, "start")
            .all_gather_texts("")
            .status()
            .throw_if_failed();
        test::let_others_pass(world, 1);
        auto never = torch::zeros({10});
        const auto pending = comm->receive(never, 1 - world.rank(), 1);
        if (world.rank() == 1) {
          static std::thread::id interrupted;
          interrupted = std::this_thread::get_id();
          set_interrupt_check(
              [] { return std::this_thread::get_id() == interrupted; });
        }
        EXPECT_THAT(
            pending->wait("a message").message(),
            testing::HasSubstr("gave up: [base] the program was interrupted"));
        set_interrupt_check(nullptr);
      },
      {.close_world = false}));
}

TEST(CommunicatorSums, RoundHalfPrecisionOnce) {
  expect_all_ok(run_ranks(3, [](World world) {
    const auto comm = make_c10d_transport(world, "c", {0, 1, 2});
    // 257 is not representable in bfloat16; 258 is.
    auto t = torch::full({5}, world.rank() == 0 ? 256 : 1, torch::kBFloat16);
    Collectives(*comm, "sum").all_reduce(t, 1.0).throw_if_failed();
    EXPECT_TRUE(t.eq(258).all().item<bool>());
  }));
}

TEST(CommunicatorGroups, OfSomeRanksAreIndependent) {
  expect_all_ok(run_ranks(4, [](World world) {
    const Mesh mesh(world, {.replicate = 2});
    const auto shard = make_c10d_transport(
        world, "shard" + std::to_string(mesh.replicate_index()),
        mesh.shard_ranks());
    const auto replicate = make_c10d_transport(
        world, "replicate" + std::to_string(mesh.shard_index()),
        mesh.replicate_ranks());
    EXPECT_EQ(shard->world_rank(shard->index()), world.rank());
    auto t = torch::full({1}, world.rank(), torch::kFloat);
    Collectives(*shard, "shards").all_reduce(t, 1.0).throw_if_failed();
    EXPECT_EQ(t.item<float>(), world.rank() < 2 ? 1 : 5);
    Collectives(*replicate, "replicas").all_reduce(t, 1.0).throw_if_failed();
    EXPECT_EQ(t.item<float>(), 6);
    world.barrier();
  }));
}

RankOptions with_shared_connections() {
  RankOptions options;
  options.world.share_connections = true;
  return options;
}

// Both have messages and collectives with the same tags under way, and wait in another order.
TEST(SharedConnections, KeepTheMessagesOfTheirUsersApart) {
  expect_all_ok(run_ranks(
      3,
      [](World world) {
        const auto first = make_model_transport(world, "a/gather", {0, 1, 2});
        const auto second = make_model_transport(world, "b/gather", {0, 1, 2});
        const int next = (world.rank() + 1) % 3;
        const int last = (world.rank() + 2) % 3;
        const auto of_first = torch::full({50'000}, world.rank());
        const auto of_second = torch::full({10}, 10 + world.rank());
        auto from_first = torch::zeros_like(of_first);
        auto from_second = torch::zeros_like(of_second);
        Transfers transfers;
        for (const int turn : {0, 1}) {
          const bool now_first = (turn + world.rank()) % 2 == 0;
          const auto& one = now_first ? first : second;
          transfers.push_back(
              one->send(now_first ? of_first : of_second, next, 5));
          transfers.push_back(
              one->receive(now_first ? from_first : from_second, last, 5));
        }
        wait_all(transfers, "both").throw_if_failed();
        EXPECT_TRUE(from_first.eq(last).all().item<bool>());
        EXPECT_TRUE(from_second.eq(10 + last).all().item<bool>());
        auto sum = torch::ones({3}, torch::kFloat);
        std::thread beside([&] {
          for (int i = 0; i < 20; ++i) {
            auto more = torch::full({1}, 2, torch::kFloat);
            Collectives(*second, "more")
                .all_reduce(more, 1.0)
                .throw_if_failed();
            EXPECT_EQ(more.item<float>(), 6);
          }
        });
        for (int i = 0; i < 20; ++i) {
          auto one = torch::full({1}, 1, torch::kFloat);
          Collectives(*first, "one").all_reduce(one, 1.0).throw_if_failed();
          EXPECT_EQ(one.item<float>(), 3);
        }
        beside.join();
      },
      with_shared_connections()));
}

TEST(SharedConnections, FailAndEndTogether) {
  expect_all_ok(run_ranks(
      2,
      [](World world) {
        auto first = make_model_transport(world, "a/gather", {0, 1});
        const auto second = make_model_transport(world, "b/gather", {0, 1});
        first.reset();  // The other one continues.
        auto sum = torch::ones({1}, torch::kFloat);
        Collectives(*second, "sum").all_reduce(sum, 1.0).throw_if_failed();
        const auto third = make_model_transport(world, "c/gather", {0, 1});
        test::let_others_pass(world, 0);
        if (world.rank() == 0) {
          third->abandon({ErrorCode::kAborted, "it had enough"});
        }
        const auto status =
            Collectives(*second, "in vain").all_reduce(sum, 1.0);
        EXPECT_THAT(status.message(), ::testing::HasSubstr("it had enough"));
      },
      [] {
        auto options = with_shared_connections();
        options.close_world = false;
        return options;
      }()));
}

TEST(SharedConnections, AreConnectedAnewForModelsThatFindNoChannel) {
  expect_all_ok(run_ranks(
      2,
      [](World world) {
        const auto make = [&](int number) {
          return make_model_transport(
              world, std::to_string(number) + "/gather", {0, 1});
        };
        const auto expect_sums = [](Transport& transport) {
          auto sum = torch::ones({1}, torch::kFloat);
          Collectives(transport, "sum").all_reduce(sum, 1.0).throw_if_failed();
          EXPECT_EQ(sum.item<float>(), 2);
        };
        // Twice as many as share connections (WorldOptions::share_connections).
        constexpr int kChannels = 2 * 64;
        const auto first = make(0);
        for (int i = 1; i < kChannels; ++i) {
          expect_sums(*make(i));
        }
        const auto last = make(kChannels);
        expect_sums(*last);
        expect_sums(*first);
      },
      with_shared_connections()));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds, CommunicatorSizes, ::testing::Values(1, 2, 3, 4, 7));

// Starts receives that are never answered, and counts them.
class SilentBackend final : public c10d::Backend {
 public:
  SilentBackend() : Backend(0, 2) {}
  c10::intrusive_ptr<c10d::Work> recv(
      std::vector<at::Tensor>& /*tensors*/,
      int /*peer*/,
      int /*tag*/) override {
    ++receives;
    return c10::make_intrusive<SilentWork>();
  }

  int receives = 0;

 private:
  class SilentWork final : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds limit) override {
      std::unique_lock lock(mutex_);
      if (!changed_.wait_for(lock, limit, [this] { return aborted_; })) {
        throw std::runtime_error("timed out");
      }
      aborted_ = false;
      return false;
    }
    void abort() override {
      const std::lock_guard lock(mutex_);
      aborted_ = true;
      changed_.notify_all();
    }

   private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool aborted_ = false;
  };
};

// Gloo keeps some memory for each receive that is never answered, and a job waits for weeks.
TEST(PeerOfAnotherHost, IsProbedWithOneReceiveHoweverLongTheWait) {
  const RankReport report = run_ranks(
      2,
      [](World world) {
        if (world.rank() == 1) {
          world.impl()->watch->wait_lost(20s);
          return;
        }
        ASSERT_FALSE(world.impl()->watch->watches(1));
        const auto backend = c10::make_intrusive<SilentBackend>();
        C10dTransport transport(
            {.ranks = {0, 1}, .own_rank = 0, .deadline = 2500ms, .name = "it"},
            backend, *world.impl()->watch);
        auto t = torch::ones({4});
        const auto message = transport.receive(t, 1, 0);
        const int before = backend->receives;  // Probes and leave messages.
        const Status status = message->wait("numbers");
        EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded)
            << status.message();
        // One receive ends the group.
        EXPECT_EQ(backend->receives, before + 1);
      },
      {.hosts = {1, 1}, .blind_hosts = true, .close_world = false});
  EXPECT_EQ(report[0].exit_code, 0) << report[0].output;
}

}  // namespace
}  // namespace sherd::world
