// SPDX-License-Identifier: Apache-2.0
//
// Members that are stopped in the middle of a reduction and continue when the others have given it
// up and use its memory for something else. See docs/design/ring_reduce.md.
#include "ft/ring/ring.h"

#include <unistd.h>
#include <csignal>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/ring_testing.h"
#include "support/forked_process.h"

namespace sherd::ft::ring {
namespace {

using sherd::test::ForkedProcess;
using sherd::test::receive_over;
using sherd::test::send_over;

constexpr int kMoments = 50;
constexpr float kGuard = 1e30F;
const Layout kLayout = {200000, 200000};
// What each member receives in sums and in parts of them.
constexpr std::uint64_t kReceivedBytes = std::uint64_t{400000} * 4 * 4 / 3;

// When the late member is stopped: after this many bytes of the first member, in a ring with such
// chunks. With long chunks all frames are soon sent, and little is left to do but read them.
struct Moment {
  std::uint64_t received_bytes = 0;
  std::size_t chunk_bytes = 4096;
};
constexpr ReplicaId kLate = 2;

std::uint64_t seed_of(ReplicaId replica) { return 1000 + replica; }

Floats expected_sum() {
  std::vector<Floats> in;
  for (ReplicaId replica = 0; replica <= kLate; ++replica) {
    in.push_back(random_buckets(kLayout, seed_of(replica)));
  }
  return reference({&in[0], &in[1], &in[2]}, {1, 1, 1});
}

std::unique_ptr<TestMember> make_member(
    ReplicaId replica, Memory memory, const Moment& moment) {
  RingOptions options;
  options.replica = replica;
  options.incarnation = 100 + replica;
  options.chunk_bytes = moment.chunk_bytes;
  options.slots = 4;
  options.connect_timeout = kTestDeadline;
  return std::make_unique<TestMember>(
      options, kLayout, seed_of(replica), memory);
}

struct Ports {
  std::uint16_t port[kLate + 1] = {};
};

RingMembership epoch_of(const Ports& ports) {
  RingMembership epoch{{1, 1}, {}};
  for (ReplicaId replica = 0; replica <= kLate; ++replica) {
    epoch.members.push_back(
        {replica, 100 + replica, "127.0.0.1", ports.port[replica]});
  }
  return epoch;
}

// What became of the late member's reduction.
enum class Verdict : char { kFailed = 'f', kRight = 'r', kWrong = 'w' };

// A process of its own that reduces once and reports the outcome.
class LateMember : public ForkedProcess {
 public:
  LateMember(Memory memory, const Moment& moment)
      : ForkedProcess([&](int channel) { live(memory, moment, channel); }),
        port_(receive_over<std::uint16_t>(channel())) {}

  std::uint16_t port() const { return port_; }
  void begin(const Ports& ports) const { send_over(channel(), ports); }
  // Its verdict, sent when it has finished with its ring; nullopt if it has died.
  std::optional<Verdict> verdict() const {
    char letter = 0;
    return ::read(channel(), &letter, 1) == 1
        ? std::optional(static_cast<Verdict>(letter))
        : std::nullopt;
  }

 private:
  static void live(Memory memory, const Moment& moment, int channel) {
    auto self = make_member(kLate, memory, moment);
    send_over(channel, self->ring.port());
    const RingMembership epoch = epoch_of(receive_over<Ports>(channel));
    self->ring.join(epoch);
    self->give_all();
    if (!self->events_seen.joined(epoch.epoch)) {
      ::_exit(1);
    }
    self->ring.begin({epoch.epoch, 1}, {1, 1, 1});
    const bool reduced =
        self->events_seen.reduced_unless_failed({epoch.epoch, 1});
    const Verdict verdict = !reduced           ? Verdict::kFailed
        : same_bits(self->out, expected_sum()) ? Verdict::kRight
                                               : Verdict::kWrong;
    self.reset();
    send_over(channel, verdict);
  }

  const std::uint16_t port_;
};

// Two members in this process and a late one, which is stopped at the moment.
struct StoppedInside {
  StoppedInside(Memory memory, const Moment& moment) : late(memory, moment) {
    Ports ports;
    for (ReplicaId replica = 0; replica < kLate; ++replica) {
      members.push_back(make_member(replica, memory, moment));
      ports.port[replica] = members.back()->ring.port();
    }
    ports.port[kLate] = late.port();
    epoch = epoch_of(ports);
    late.begin(ports);
    for (auto& member : members) {
      member->ring.join(epoch);
      member->give_all();
    }
    for (auto& member : members) {
      EXPECT_TRUE(member->events_seen.joined(epoch.epoch));
      member->ring.begin({epoch.epoch, 1}, {1, 1, 1});
    }
    const SteadyClock clock;
    const Instant until = clock.now() + kTestDeadline;
    while (members[0]->ring.counters().received_bytes < moment.received_bytes &&
           clock.now() < until) {
    }
    late.signal(SIGSTOP);
  }

  LateMember late;
  std::vector<std::unique_ptr<TestMember>> members;
  RingMembership epoch;
};

void fill(Floats& floats) {
  for (auto& bucket : floats) {
    std::fill(bucket.begin(), bucket.end(), kGuard);
  }
}

bool is_filled(const Floats& floats) {
  return std::all_of(
      floats.begin(), floats.end(), [](const BucketValues& bucket) {
        return std::all_of(bucket.begin(), bucket.end(), [](float value) {
          return value == kGuard;
        });
      });
}

class RingLate : public testing::TestWithParam<Memory> {
 protected:
  RingLate() {
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed_));
  }
  // Anywhere in what is still to come, or when the first member has all of it.
  Moment moment() {
    const std::size_t chunks[] = {4096, 65536, 524288};
    const bool at_end = random_() % 2 == 0;
    return {
        at_end ? kReceivedBytes - 1000 : random_() % kReceivedBytes,
        chunks[random_() % 3]};
  }

  const std::uint64_t seed_ = std::random_device()();

 private:
  std::mt19937_64 random_{seed_};
};
INSTANTIATE_TEST_SUITE_P(
    Ways,
    RingLate,
    testing::Values(Memory::kOwn, Memory::kShared),
    [](const auto& one) {
      return std::string(one.param == Memory::kOwn ? "Tcp" : "Shared");
    });

TEST_P(RingLate, AStoppedMemberNeitherGetsNorWritesWhatCameLater) {
  int failed = 0;
  for (int i = 0; i < kMoments; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed_ << ", moment " << i);
    StoppedInside ring(GetParam(), moment());
    for (auto& member : ring.members) {
      member->ring.stop(ring.epoch.epoch);
      member->ring.forget();
      fill(member->in);
      fill(member->out);
    }
    ring.late.signal(SIGCONT);
    const auto verdict = ring.late.verdict();
    ASSERT_TRUE(verdict.has_value());
    EXPECT_NE(*verdict, Verdict::kWrong);
    failed += *verdict == Verdict::kFailed ? 1 : 0;
    for (const auto& member : ring.members) {
      EXPECT_TRUE(is_filled(member->in) && is_filled(member->out));
    }
  }
  // A member that lacks nothing has the right sum, however late it is. Not all do.
  EXPECT_GT(failed, 0);
  RecordProperty("failed", failed);
}

TEST_P(RingLate, AStoppedMemberHearsOfTheEndAfterTheOthersHaveUnmappedAll) {
  for (int i = 0; i < kMoments / 5; ++i) {
    SCOPED_TRACE(testing::Message() << "seed " << seed_ << ", moment " << i);
    StoppedInside ring(GetParam(), moment());
    ring.members.clear();
    EXPECT_EQ(mappings(), 0U);
    ring.late.signal(SIGCONT);
    const auto verdict = ring.late.verdict();
    ASSERT_TRUE(verdict.has_value());
    EXPECT_NE(*verdict, Verdict::kWrong);
  }
}

}  // namespace
}  // namespace sherd::ft::ring
