// SPDX-License-Identifier: Apache-2.0
//
// One of two processes is stopped at a random moment, the other one gives up and reuses or unmaps
// the memory that it had lent, and then the first one goes on: the call fails on both, and no byte
// of the memory changes. Needs no LibTorch.
#include <poll.h>
#include <sys/mman.h>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/descriptor.h"
#include "base/process.h"
#include "c10d_shm/communicator/collectives.h"
#include "c10d_shm/communicator/p2p_channel.h"
#include "shm/testing.h"

namespace sherd::c10d_shm {
namespace {

using namespace std::chrono_literals;
using shm::test::ChildLink;
using shm::test::kClock;
using shm::test::Table;
using ::testing::HasSubstr;

using Number = std::uint32_t;
using NumberSpan = std::span<Number>;

constexpr int kMoments = 50;
constexpr int kLateRank = 1;
// The late rank, which may only seem to wait for long on a busy machine, blames nobody.
Duration patience_of(int rank) { return rank == kLateRank ? 30s : 100ms; }
constexpr std::size_t kCount = std::size_t{1} << 18;  // 1 MiB.
constexpr Number kGuard = 0xA5A5A5A5;

// Memory that a rank lends, in pages of its own, so that it can be unmapped.
class Lent {
 public:
  explicit Lent(std::size_t count) : count_(count) {
    base_ = ::mmap(
        nullptr, count * sizeof(Number), PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    SHERD_ASSERT(base_ != MAP_FAILED, "memory for the test");
  }
  ~Lent() { unmap(); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  NumberSpan numbers() const { return {static_cast<Number*>(base_), count_}; }
  Bytes bytes(std::size_t from, std::size_t count) const {
    return std::as_writable_bytes(numbers().subspan(from, count));
  }
  void unmap() {
    if (base_ != MAP_FAILED) {
      ::munmap(std::exchange(base_, MAP_FAILED), count_ * sizeof(Number));
    }
  }

 private:
  void* base_;
  std::size_t count_;
};

Number value(int rank, std::uint64_t call, std::size_t i) {
  return static_cast<Number>(call * 977 + i * 3 + static_cast<unsigned>(rank));
}

void fill(NumberSpan numbers, int rank, std::uint64_t call) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = value(rank, call, i);
  }
}

// Whether it is the sum of both ranks from element `from` on.
bool is_sum(NumberSpan numbers, std::uint64_t call, std::size_t from) {
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != value(0, call, from + i) + value(1, call, from + i)) {
      return false;
    }
  }
  return true;
}

void add(
    std::span<const std::byte* const> inputs,
    std::size_t elements,
    std::byte* out) {
  for (std::size_t i = 0; i < elements; ++i) {
    Number sum = 0;
    for (const std::byte* input : inputs) {
      sum += reinterpret_cast<const Number*>(input)[i];
    }
    reinterpret_cast<Number*>(out)[i] = sum;
  }
}

// Calls of every kind and size in turn; checks that a successful outcome has the right numbers.
class Calls {
 public:
  explicit Calls(ShmCommunicator& communicator)
      : communicator_(communicator), own_(communicator.rank()) {}

  Lent lent{kCount};

  Status next(std::uint64_t call) {
    fill(lent.numbers(), own_, call);
    const std::size_t count = call % 3 == 2 ? 512 : kCount;
    switch (call % 5) {
      case 0:
        return reduced(call, count, ReduceArguments::Recipients::kAll);
      case 1:
        return reduced(call, count, ReduceArguments::Recipients::kRoot);
      case 2:
        return reduced(call, count, ReduceArguments::Recipients::kOwner);
      case 3:
        return gathered(call, count);
      default:
        return barrier(
            communicator_, {.what = "barrier", .deadline = patience_of(own_)});
    }
  }

 private:
  Status reduced(
      std::uint64_t call,
      std::size_t count,
      ReduceArguments::Recipients recipients) {
    const std::size_t half = count / 2;
    const std::size_t mine = static_cast<std::size_t>(own_) * half;
    const std::vector<Bytes> slices = {
        lent.bytes(0, half), lent.bytes(half, half)};
    const NumberSpan target = NumberSpan(target_).first(half);
    Status outcome = reduce(
        communicator_, {.what = "reduce", .deadline = patience_of(own_)},
        {.slices = slices,
         .target = std::as_writable_bytes(target),
         .recipients = recipients,
         .root = kLateRank,
         .kernel = {add, sizeof(Number)}});
    if (outcome.ok() && recipients == ReduceArguments::Recipients::kOwner) {
      EXPECT_TRUE(is_sum(target, call, mine));
    } else if (
        outcome.ok() &&
        (recipients == ReduceArguments::Recipients::kAll ||
         own_ == kLateRank)) {
      EXPECT_TRUE(is_sum(lent.numbers().first(count), call, 0));
    }
    return outcome;
  }

  Status gathered(std::uint64_t call, std::size_t count) {
    const std::vector<Bytes> sources(2, lent.bytes(0, count));
    std::vector<Bytes> targets(2, lent.bytes(0, count));
    const NumberSpan target = NumberSpan(target_).first(count);
    targets[static_cast<std::size_t>(1 - own_)] =
        std::as_writable_bytes(target);
    Status outcome = all_to_all(
        communicator_, {.what = "all-gather", .deadline = patience_of(own_)},
        {.sources = sources, .targets = targets, .one_source = true});
    for (std::size_t i = 0; i < count && outcome.ok(); ++i) {
      if (target[i] != value(1 - own_, call, i)) {
        ADD_FAILURE() << "wrong number " << i << " in call " << call;
        break;
      }
    }
    return outcome;
  }

  ShmCommunicator& communicator_;
  const int own_;
  std::vector<Number> target_ = std::vector<Number>(kCount);
};

// What the rank that gave up does with its memory: it keeps it under guard or, at every other
// moment, unmaps it; then it lets the late rank run to its end.
void reuse_memory(Lent& lent, int moment, const shm::Peers& peers) {
  const Descriptor late_process = open_pidfd(peers.process(kLateRank));
  if (moment % 2 == 1) {
    lent.unmap();
  } else {
    std::fill(lent.numbers().begin(), lent.numbers().end(), kGuard);
  }
  // Repeated: on a busy machine it may be stopped only now.
  pollfd ended = {late_process.get(), POLLIN, 0};
  int has_ended = 0;
  for (int i = 0; i < 200 && has_ended == 0; ++i) {
    ::kill(peers.process(kLateRank), SIGCONT);
    has_ended = ::poll(&ended, 1, 100);
  }
  EXPECT_EQ(has_ended, 1) << "the late rank has not ended";
  if (moment % 2 == 0) {
    EXPECT_EQ(
        std::count(lent.numbers().begin(), lent.numbers().end(), kGuard),
        static_cast<std::ptrdiff_t>(lent.numbers().size()));
  }
}

// Lets the late rank go on after a while. If it was stopped between looking for the mark and
// calling the kernel, it keeps the other one waiting (PeerWriter::await_end), which gets its memory
// back only after that write.
class GoesOnInTheEnd {
 public:
  explicit GoesOnInTheEnd(int process)
      : thread_([process, given_up = given_up_.get_future()] {
          if (given_up.wait_for(5s) == std::future_status::timeout) {
            ::kill(process, SIGCONT);
          }
        }) {}
  ~GoesOnInTheEnd() { given_up_.set_value(); }
  GoesOnInTheEnd(const GoesOnInTheEnd&) = delete;
  GoesOnInTheEnd& operator=(const GoesOnInTheEnd&) = delete;

 private:
  std::promise<void> given_up_;
  std::jthread thread_;
};

// In which call a rank failed, and why, without what only that rank waited for.
struct Failed {
  std::uint64_t call = 0;
  std::string why;
};

std::string text_of(std::uint64_t call, const Status& failed) {
  return str(call, ' ', failed.message());
}

Failed failed_of(const std::string& text) {
  Failed failed{.call = std::strtoull(text.c_str(), nullptr, 10), .why = {}};
  failed.why = text.substr(std::min(text.find(' '), text.size()));
  failed.why = failed.why.substr(0, failed.why.find(';'));
  return failed;
}

// From here on the late rank may be stopped.
void reach_calls(int rank, ChildLink& link) {
  if (rank == kLateRank) {
    link.reach("calls");
  }
}

// Runs `body` on two ranks that report why they failed, and in which call; the late one is stopped
// once at each of many moments. It may fail up to `calls_before_max` calls before the other one.
void at_every_moment(
    std::size_t bytes,
    std::uint64_t calls_before_max,
    const std::function<
        void(int moment, const Table&, shm::Peers&, ChildLink&)>& body) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int moment = 0; moment < kMoments && !::testing::Test::HasFailure();
       ++moment) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    const Table table(2, 1, bytes);
    const auto report = shm::test::run_forked(
        table,
        [&](int, shm::Peers& peers, ChildLink& link) {
          body(moment, table, peers, link);
          return 0;
        },
        {{.child = kLateRank,
          .point = "calls",
          .signal = SIGSTOP,
          .later = std::chrono::microseconds(random() % 15000)}});
    shm::test::expect_all_ok(report);
    const Failed first = failed_of(report.children[0].result);
    const Failed late = failed_of(report.children[1].result);
    EXPECT_THAT(first.why, HasSubstr("rank 1 is not responding"));
    EXPECT_THAT(first.why, HasSubstr("timed out"));
    EXPECT_EQ(late.why, first.why);
    EXPECT_LE(late.call, first.call);
    EXPECT_GE(late.call + calls_before_max, first.call);
  }
}

void collectives_fail_on_both(const ShmCommunicatorOptions& options) {
  at_every_moment(
      ShmCommunicator::bytes(2, options), 0,
      [&](int moment, const Table& table, shm::Peers& peers, ChildLink& link) {
        ShmCommunicator communicator(table.data(), peers, kClock, options);
        communicator.open(10s).throw_if_failed();
        reach_calls(communicator.rank(), link);
        Calls calls(communicator);
        std::uint64_t call = 0;
        Status outcome;
        {
          const GoesOnInTheEnd patience(peers.process(kLateRank));
          while (outcome.ok()) {
            outcome = calls.next(++call);
          }
        }
        link.report(text_of(call, outcome));
        if (communicator.rank() != kLateRank) {
          reuse_memory(calls.lent, moment, peers);
        }
      });
}

TEST(LateRank, CollectivesThatCopyDirectlyFailOnBoth) {
  collectives_fail_on_both(
      {.buffer_bytes = std::size_t{64} << 10,
       .single_copy_bytes_min = std::size_t{64} << 10,
       .single_copy_sum_bytes_min = std::size_t{64} << 10});
}

TEST(LateRank, CollectivesThroughTheSegmentFailOnBoth) {
  collectives_fail_on_both(
      {.single_copy = false, .buffer_bytes = std::size_t{64} << 10});
}

// Moves messages until `done` shows that one has ended.
void run_until(P2pChannel& channel, const bool& done) {
  while (!done) {
    const std::uint64_t rung = channel.doorbell().value();
    while (channel.progress()) {
    }
    channel.check_peers();
    for (auto& ended : channel.take_ended()) {
      ended.message.done(ended.outcome, ended.source);
    }
    if (!done) {
      channel.doorbell().sleep_below(rung + 1, 5ms);
    }
  }
}

// With direct copies, the late rank may fail one call before the other one: if it was stopped after
// its reply to one message and before it looked for the mark, which the sender of the next one has
// set meanwhile. Its numbers are right.
void messages_fail_on_both(bool single_copy) {
  at_every_moment(
      P2pChannel::bytes(2), single_copy ? 1 : 0,
      [&](int moment, const Table& table, shm::Peers& peers, ChildLink& link) {
        P2pChannel channel(table.data(), peers, kClock, single_copy);
        const bool late = peers.rank() == kLateRank;
        reach_calls(peers.rank(), link);
        Lent lent(kCount);
        std::uint64_t call = 0;
        Status outcome;
        while (outcome.ok()) {
          ++call;
          bool done = false;
          P2pMessage message{
              .peer = 1 - peers.rank(),
              .bytes = lent.bytes(0, kCount),
              .timeout = patience_of(peers.rank()),
              .done = [&](const Status& how, int) {
                outcome = how;
                done = true;
              }};
          if (late) {
            channel.receive(std::move(message));
          } else {
            fill(lent.numbers(), 0, call);
            channel.send(std::move(message));
          }
          channel.ring_doorbell();
          run_until(channel, done);
          if (late && outcome.ok()) {
            EXPECT_EQ(lent.numbers().front(), value(0, call, 0));
            EXPECT_EQ(lent.numbers().back(), value(0, call, kCount - 1));
          }
        }
        link.report(text_of(call, outcome));
        if (!late) {
          reuse_memory(lent, moment, peers);
        }
      });
}

TEST(LateRank, MessagesThatAreCopiedDirectlyFailOnBoth) {
  messages_fail_on_both(true);
}

TEST(LateRank, MessagesPieceByPieceFailOnBoth) { messages_fail_on_both(false); }

}  // namespace
}  // namespace sherd::c10d_shm
