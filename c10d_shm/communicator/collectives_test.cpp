// SPDX-License-Identifier: Apache-2.0
//
// Ranks are threads, so that ThreadSanitizer sees both sides of each copy
// through the segment; copies between processes are tested with the backend.
#include "c10d_shm/communicator/collectives.h"

#include <sys/mman.h>
#include <barrier>
#include <cstdint>
#include <new>
#include <optional>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "c10d_shm/communicator/p2p_channel.h"
#include "shm/testing.h"

namespace sherd::c10d_shm {
namespace {

using shm::test::kClock;
using shm::test::Table;
using Numbers = std::vector<std::uint32_t>;

const CollectiveCall kCall{
    .what = "the test", .deadline = std::chrono::seconds(30)};
// Buffers so small that a few hundred numbers take many rounds.
const ShmCommunicatorOptions kOptions{
    .single_copy = false, .buffer_bytes = 4096, .sum_alone_bytes_max = 64};

Bytes bytes_of(Numbers& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}

Numbers numbers(int from, int to, std::size_t size) {
  Numbers all(size);
  for (std::size_t i = 0; i < size; ++i) {
    all[i] = static_cast<std::uint32_t>(
        1000000 * (from + 1) + 10000 * to + static_cast<int>(i));
  }
  return all;
}

void on_communicators(
    int ranks, const std::function<void(ShmCommunicator&)>& body) {
  const Table table(ranks, 0, ShmCommunicator::bytes(ranks, kOptions));
  shm::test::run_threads(table, [&](int, shm::Peers& peers) {
    ShmCommunicator communicator(table.data(), peers, kClock, kOptions);
    ASSERT_TRUE(communicator.open(kCall.deadline).ok());
    body(communicator);
  });
}

TEST(SharedCollectives, EveryPieceGoesWhereItBelongs) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    on_communicators(ranks, [&](ShmCommunicator& communicator) {
      for (const std::size_t most : {0, 3, 700}) {
        const int own = communicator.rank();
        const auto size = [&](int from, int to) {
          return most == 0 ? 0 : most + index(3 * from + to);
        };
        std::vector<Numbers> out;
        std::vector<Numbers> in;
        std::vector<Bytes> sources;
        std::vector<Bytes> targets;
        for (int r = 0; r < ranks; ++r) {
          out.push_back(numbers(own, r, size(own, r)));
          in.emplace_back(size(r, own), 0U);
        }
        for (int r = 0; r < ranks; ++r) {
          sources.push_back(bytes_of(out[index(r)]));
          targets.push_back(bytes_of(in[index(r)]));
        }
        ASSERT_TRUE(
            all_to_all(
                communicator, kCall, {.sources = sources, .targets = targets})
                .ok());
        for (int r = 0; r < ranks; ++r) {
          EXPECT_EQ(in[index(r)], numbers(r, own, size(r, own)));
        }
      }
    });
  }
}

// Neither a sum nor a product, so that the order of ranks shows.
void fold_in_order(
    std::span<const std::byte* const> inputs,
    std::size_t elements,
    std::byte* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint32_t result = 0;
    for (const std::byte* input : inputs) {
      result = result * 31 + reinterpret_cast<const std::uint32_t*>(input)[i];
    }
    reinterpret_cast<std::uint32_t*>(out)[i] = result;
  }
}

TEST(SharedCollectives, SlicesAreFoldedInRankOrder) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    on_communicators(ranks, [&](ShmCommunicator& communicator) {
      for (const std::size_t each : {0, 1, 700}) {
        for (const ReduceArguments::Recipients recipients :
             {ReduceArguments::Recipients::kOwner,
              ReduceArguments::Recipients::kAll,
              ReduceArguments::Recipients::kRoot}) {
          const std::size_t all = each * index(ranks);
          const Numbers brought = numbers(communicator.rank(), 0, all);
          Numbers own = brought;
          Numbers target(each);
          std::vector<Bytes> slices;
          for (int r = 0; r < ranks; ++r) {
            slices.push_back(
                bytes_of(own).subspan(4 * each * index(r), 4 * each));
          }
          const int root = ranks - 1;
          ASSERT_TRUE(reduce(
                          communicator, kCall,
                          {.slices = slices,
                           .target = bytes_of(target),
                           .recipients = recipients,
                           .root = root,
                           .kernel = {fold_in_order, 4}})
                          .ok());
          Numbers expected(all, 0);
          for (int r = 0; r < ranks; ++r) {
            const Numbers of_rank = numbers(r, 0, all);
            for (std::size_t i = 0; i < all; ++i) {
              expected[i] = expected[i] * 31 + of_rank[i];
            }
          }
          if (recipients == ReduceArguments::Recipients::kOwner) {
            const auto begin = expected.begin() +
                static_cast<std::ptrdiff_t>(each * index(communicator.rank()));
            EXPECT_EQ(
                target,
                Numbers(begin, begin + static_cast<std::ptrdiff_t>(each)));
            EXPECT_EQ(own, brought);
          } else if (
              recipients == ReduceArguments::Recipients::kAll ||
              communicator.rank() == root) {
            EXPECT_EQ(own, expected);
          } else {
            EXPECT_EQ(own, brought);
          }
        }
      }
    });
  }
}

TEST(SharedCollectives, AMismatchMovesNothingAndTheNextCallWorks) {
  on_communicators(3, [](ShmCommunicator& communicator) {
    Numbers own =
        numbers(communicator.rank(), 0, communicator.rank() == 1 ? 6 : 5);
    const Numbers before = own;
    const std::vector<Bytes> slices(3, bytes_of(own));
    const Status outcome = reduce(
        communicator, kCall,
        {.slices = slices,
         .recipients = ReduceArguments::Recipients::kAll,
         .kernel = {fold_in_order, 4}});
    EXPECT_EQ(outcome.code(), ErrorCode::kPeerMismatch);
    EXPECT_EQ(own, before);
    EXPECT_TRUE(barrier(communicator, kCall).ok());
  });
}

// Ranks whose own pieces all have one size detect it as well.
TEST(SharedCollectives, OneRaggedRankIsAMismatchOnEveryRank) {
  on_communicators(3, [](ShmCommunicator& communicator) {
    Numbers out = numbers(communicator.rank(), 0, 12);
    Numbers in(12, 0);
    std::vector<Bytes> sources;
    std::vector<Bytes> targets;
    for (std::size_t r = 0; r < 3; ++r) {
      const std::size_t more =
          communicator.rank() == 1 && r == 2 ? std::size_t{1} : 0;
      sources.push_back(bytes_of(out).subspan(16 * r, 4 * (3 + more)));
      targets.push_back(bytes_of(in).subspan(16 * r, 12));
    }
    for (const bool fits : {false, true}) {
      sources[2] = fits ? sources[2].first(12) : sources[2];
      const Status outcome = all_to_all(
          communicator, kCall, {.sources = sources, .targets = targets});
      EXPECT_EQ(outcome.ok(), fits);
      if (!fits) {
        EXPECT_EQ(outcome.code(), ErrorCode::kPeerMismatch);
        EXPECT_EQ(in, Numbers(12, 0));
      }
    }
    EXPECT_EQ(in[0], numbers(0, 0, 12)[4 * index(communicator.rank())]);
  });
}

// A call that differs only in its words has another digest.
TEST(SharedCollectives, AnotherCallOfTheSameSizeIsAMismatch) {
  on_communicators(3, [](ShmCommunicator& communicator) {
    Numbers own = numbers(communicator.rank(), 0, 5);
    const std::vector<Bytes> slices(3, bytes_of(own));
    const Status outcome = reduce(
        communicator,
        {.what = communicator.rank() == 1 ? "sum" : "product",
         .deadline = kCall.deadline},
        {.slices = slices,
         .recipients = ReduceArguments::Recipients::kAll,
         .kernel = {fold_in_order, 4}});
    EXPECT_EQ(outcome.code(), ErrorCode::kPeerMismatch);
    EXPECT_THAT(outcome.message(), ::testing::HasSubstr("product"));
    EXPECT_TRUE(barrier(communicator, kCall).ok());
  });
}

// Moves messages of `channel` until `done` says so.
void move_messages(P2pChannel& channel, const std::function<bool()>& done) {
  const Instant until = kClock.now() + kCall.deadline;
  while (!done() && kClock.now() < until) {
    const std::uint64_t rung = channel.doorbell().value();
    while (channel.progress()) {
    }
    for (auto& ended : channel.take_ended()) {
      ended.message.done(ended.outcome, ended.source);
    }
    if (!done()) {
      channel.doorbell().sleep_below(rung + 1, std::chrono::milliseconds(5));
    }
  }
}

// Rank 1 runs out of memory among the rounds of a reduction, so that it does not come to the others'
// next meeting.
TEST(SharedCollectives, AnExceptionEndsTheGroup) {
  on_communicators(3, [](ShmCommunicator& communicator) {
    const bool throws = communicator.rank() == 1;
    Numbers own = numbers(communicator.rank(), 0, 700);
    const std::vector<Bytes> slices(3, bytes_of(own));
    const Status outcome = communicator.run([&] {
      return reduce(
          communicator, kCall,
          {.slices = slices,
           .recipients = ReduceArguments::Recipients::kAll,
           .kernel = {
               [&](auto inputs, std::size_t elements, std::byte* out) {
                 if (throws) {
                   throw std::bad_alloc();
                 }
                 fold_in_order(inputs, elements, out);
               },
               4}});
    });
    EXPECT_EQ(
        outcome.code(), throws ? ErrorCode::kUnavailable : ErrorCode::kAborted);
    EXPECT_THAT(outcome.message(), ::testing::HasSubstr("bad_alloc"));
    EXPECT_FALSE(barrier(communicator, kCall).ok());
  });
}

// A message of rank 0 that timed out has ended the group. All ranks come to each collective, so none
// of them waits.
TEST(SharedCollectives, NoneSucceedsAfterAMessageHasEndedTheGroup) {
  constexpr int kRanks = 3;
  const Table table(kRanks, 0, ShmCommunicator::bytes(kRanks, kOptions));
  std::barrier all(kRanks);
  shm::test::run_threads(table, [&](int rank, shm::Peers& peers) {
    ShmCommunicator communicator(table.data(), peers, kClock, kOptions);
    const bool open = communicator.open(kCall.deadline).ok();
    EXPECT_TRUE(open);
    if (rank == 0) {
      EXPECT_FALSE(peers.blame(1).ok());
    }
    all.arrive_and_wait();
    for (int call = 0; call < 100; ++call) {
      all.arrive_and_wait();
      EXPECT_FALSE(barrier(communicator, kCall).ok());
    }
  });
}

TEST(SharedP2pChannel, LongMessagesComePieceByPieceInAnyOrder) {
  constexpr std::size_t kLong = 50000;
  const Table table(2, 0, P2pChannel::bytes(2));
  shm::test::run_threads(table, [&](int rank, shm::Peers& peers) {
    P2pChannel channel(table.data(), peers, kClock, /*single_copy=*/false);
    const int other = 1 - rank;
    int done = 0;
    const auto count = [&](const Status& outcome, int) {
      EXPECT_TRUE(outcome.ok()) << outcome.message();
      ++done;
    };
    std::vector<Numbers> out;
    std::vector<Numbers> in;
    for (int tag = 0; tag < 20; ++tag) {
      out.push_back(numbers(rank, tag, tag % 2 == 0 ? 10 : kLong));
      in.emplace_back(out.back().size(), 0U);
    }
    for (int tag = 0; tag < 20; ++tag) {
      channel.send(
          {.peer = other,
           .tag = tag,
           .bytes = bytes_of(out[index(tag)]),
           .timeout = kCall.deadline,
           .done = count});
      channel.receive(
          {.peer = other,
           .tag = 19 - tag,
           .bytes = bytes_of(in[index(19 - tag)]),
           .timeout = kCall.deadline,
           .done = count});
    }
    move_messages(channel, [&] { return done >= 40; });
    EXPECT_EQ(done, 40);
    for (int tag = 0; tag < 20; ++tag) {
      EXPECT_EQ(in[index(tag)], numbers(other, tag, in[index(tag)].size()));
    }
    EXPECT_TRUE(channel.idle());
  });
}

// Rank 0 has timed out waiting for rank 2 and has left because of that.
TEST(SharedP2pChannel, NamesTheCauseAndNotWhoLeftBecauseOfIt) {
  const Table table(3, 0, P2pChannel::bytes(3));
  shm::Peers first(table.peers_memory(), {.rank = 0, .ranks = 3});
  shm::Peers own(table.peers_memory(), {.rank = 1, .ranks = 3});
  P2pChannel channel(table.data(), own, kClock, /*single_copy=*/false);
  Numbers room(10, 0);
  channel.receive(
      {.peer = 0, .bytes = bytes_of(room), .timeout = kCall.deadline});
  EXPECT_FALSE(first.blame(2).ok());
  first.leave();
  channel.check_peers();
  channel.send({.peer = 0, .bytes = bytes_of(room)});
  const auto ended = channel.take_ended();
  ASSERT_EQ(ended.size(), 2U);
  for (const auto& each : ended) {
    EXPECT_THAT(
        each.outcome.message(),
        ::testing::HasSubstr("rank 2 is not responding"));
  }
}

// As many headers lie between two ranks.
constexpr std::size_t kRing = 16;

// Sends some more short messages than the ring holds, and expects that those in the ring have ended.
void send_beyond_ring(P2pChannel& sender, std::vector<Numbers>& sent) {
  for (Numbers& each : sent) {
    sender.send(
        {.peer = 1,
         .bytes = bytes_of(each),
         .timeout = std::chrono::seconds(3)});
  }
  const auto ended = sender.take_ended();
  ASSERT_EQ(ended.size(), kRing);
  for (const auto& each : ended) {
    EXPECT_TRUE(each.outcome.ok()) << each.outcome.message();
  }
}

std::vector<Numbers> more_than_ring() {
  std::vector<Numbers> sent;
  for (int i = 0; i < static_cast<int>(kRing) + 4; ++i) {
    sent.push_back(numbers(0, i, 3));
  }
  return sent;
}

TEST(SharedP2pChannel, AShortSendEndsOnceItsReceiverFindsIt) {
  const Table table(2, 0, P2pChannel::bytes(2));
  shm::Peers peers_0(table.peers_memory(), {.rank = 0, .ranks = 2});
  shm::Peers peers_1(table.peers_memory(), {.rank = 1, .ranks = 2});
  P2pChannel sender(table.data(), peers_0, kClock, {});
  P2pChannel receiver(table.data(), peers_1, kClock, {});
  std::vector<Numbers> sent = more_than_ring();
  std::vector<Numbers> found(sent.size(), Numbers(3, 0));
  send_beyond_ring(sender, sent);
  EXPECT_FALSE(sender.progress());
  EXPECT_TRUE(sender.take_ended().empty());
  EXPECT_FALSE(sender.idle());
  EXPECT_FALSE(sender.has_posted_all());

  receiver.progress();
  sender.progress();
  EXPECT_EQ(sender.take_ended().size(), sent.size() - kRing);
  EXPECT_TRUE(sender.idle());
  peers_0.leave();
  for (Numbers& each : found) {
    receiver.receive(
        {.peer = 0, .bytes = bytes_of(each), .timeout = kCall.deadline});
  }
  receiver.check_peers();
  const auto ended = receiver.take_ended();
  ASSERT_EQ(ended.size(), sent.size());
  for (const auto& each : ended) {
    EXPECT_TRUE(each.outcome.ok()) << each.outcome.message();
  }
  EXPECT_EQ(found, sent);
}

TEST(SharedP2pChannel, ShortSendsBeyondTheRingFailWithTheirReceiver) {
  for (const bool leaves : {true, false}) {
    const Table table(2, 0, P2pChannel::bytes(2));
    shm::test::ManualClock clock;
    shm::Peers peers_0(table.peers_memory(), {.rank = 0, .ranks = 2});
    shm::Peers peers_1(table.peers_memory(), {.rank = 1, .ranks = 2});
    P2pChannel sender(table.data(), peers_0, clock, {});
    std::vector<Numbers> sent = more_than_ring();
    send_beyond_ring(sender, sent);
    if (leaves) {
      peers_1.leave();
    } else {
      clock.step = std::chrono::seconds(4);
    }
    sender.check_peers();
    const auto ended = sender.take_ended();
    ASSERT_EQ(ended.size(), sent.size() - kRing);
    for (const auto& each : ended) {
      EXPECT_THAT(
          each.outcome.message(),
          ::testing::HasSubstr(
              leaves ? "rank 1 has left" : "rank 1 is not responding"));
    }
    EXPECT_TRUE(sender.idle());
    // No memory of a short message is lent.
    EXPECT_FALSE(peers_1.has_revoked_memory(0));
  }
}

TEST(SharedP2pChannel, OnlyQueuesOfNeighboursAreExpectedToTakePages) {
  for (const int ranks : {1, 2, 3}) {
    EXPECT_LE(
        P2pChannel::bytes_between_neighbours(ranks), P2pChannel::bytes(ranks));
  }
  EXPECT_LT(
      P2pChannel::bytes_between_neighbours(64), P2pChannel::bytes(64) / 30);
}

// Memory of the sender that nobody can read. The group goes on.
TEST(SharedP2pChannel, WhatCannotBeReadIsAnErrorOnBothEnds) {
  constexpr std::size_t kLong = 4096;
  void* const hidden =
      ::mmap(nullptr, kLong, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hidden, MAP_FAILED);
  const Table table(2, 0, P2pChannel::bytes(2));
  shm::test::run_threads(table, [&](int rank, shm::Peers& peers) {
    P2pChannel channel(table.data(), peers, kClock, /*single_copy=*/true);
    const auto outcome_of = [&](Bytes bytes) {
      std::optional<Status> found;
      P2pMessage message{
          .peer = 1 - rank,
          .bytes = bytes,
          .timeout = kCall.deadline,
          .done = [&](const Status& outcome, int) { found = outcome; }};
      rank == 0 ? channel.send(std::move(message))
                : channel.receive(std::move(message));
      move_messages(channel, [&] { return found.has_value(); });
      return found.value_or(Status(ErrorCode::kDeadlineExceeded, "no end"));
    };
    Numbers room(kLong / sizeof(std::uint32_t), 0);
    const Status outcome = outcome_of(
        rank == 0 ? Bytes(static_cast<std::byte*>(hidden), kLong)
                  : bytes_of(room));
    ASSERT_FALSE(outcome.ok());
    EXPECT_THAT(outcome.message(), ::testing::HasSubstr("rank"));
    EXPECT_NE(outcome.code(), ErrorCode::kDeadlineExceeded);
    room.resize(10);
    EXPECT_TRUE(outcome_of(bytes_of(room)).ok());
  });
  ::munmap(hidden, kLong);
}

// Each piece takes 2 s and the message 10 s, with a timeout of 3 s.
TEST(SharedP2pChannel, ATimeoutStartsAgainWithEachPiece) {
  const Table table(2, 0, P2pChannel::bytes(2));
  shm::test::ManualClock clock;
  const auto pass = [&clock](Duration time) {
    clock.step = Instant(time);
    static_cast<void>(clock.now());
    clock.step = Instant(0);
  };
  shm::Peers peers_0(table.peers_memory(), {.rank = 0, .ranks = 2});
  shm::Peers peers_1(table.peers_memory(), {.rank = 1, .ranks = 2});
  P2pChannel sender(table.data(), peers_0, clock, {});
  P2pChannel receiver(table.data(), peers_1, clock, {});
  Numbers sent(5 * (std::size_t{64} << 10) / sizeof(std::uint32_t), 7);
  Numbers found(sent.size(), 0);
  const auto message = [](int peer, Numbers& numbers) {
    return P2pMessage{
        .peer = peer,
        .bytes = bytes_of(numbers),
        .timeout = std::chrono::seconds(3)};
  };
  sender.send(message(1, sent));
  receiver.receive(message(0, found));
  std::vector<P2pChannel::Ended> ended;
  for (int i = 0; i < 10; ++i) {
    for (P2pChannel* channel : {&sender, &receiver}) {
      channel->check_peers();
      for (auto& each : channel->take_ended()) {
        ended.push_back(std::move(each));
      }
    }
    pass(std::chrono::seconds(2));
  }
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_TRUE(ended[0].outcome.ok()) << ended[0].outcome.message();
  EXPECT_TRUE(ended[1].outcome.ok()) << ended[1].outcome.message();
  EXPECT_EQ(found, sent);
  sender.send(message(1, sent));
  pass(std::chrono::seconds(4));
  sender.check_peers();
  ended = sender.take_ended();
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].outcome.code(), ErrorCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace sherd::c10d_shm
