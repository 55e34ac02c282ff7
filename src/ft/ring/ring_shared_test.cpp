// SPDX-License-Identifier: Apache-2.0
//
// Faults that only memory that neighbours read in place can have: it is read too late, or it
// outlives a process.
#include "ft/ring/ring.h"

#include <csignal>
#include <filesystem>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/child_replica_testing.h"
#include "ft/ring/frame.h"
#include "ft/ring/ring_testing.h"

namespace sherd::ft::ring {
namespace {

using testing::HasSubstr;

class RingWay : public testing::TestWithParam<DataPath> {};
INSTANTIATE_TEST_SUITE_P(Ways, RingWay, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

TEST_P(RingWay, IsChosenForEachConnectionByItself) {
  RingGroup group(3, {.layout = {3000}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  group.begin(epoch, 1, {1, 1, 1});
  group.expect_reduced(epoch, 1, {1, 1, 1});
  for (int i = 0; i < 3; ++i) {
    const auto counters = group[i].ring.counters();
    // In a mixed ring replica 1 is the one that shares nothing.
    const bool shared = GetParam() == DataPath::kShared ||
        (GetParam() == DataPath::kMixed && i == 0);
    EXPECT_EQ(counters.received_bytes, 4 * 1000 * sizeof(float));
    EXPECT_EQ(counters.shared_bytes, shared ? counters.received_bytes : 0U)
        << "replica " << i;
  }
}

TEST_P(RingWay, SumsThatLieElsewhereGoOverTcp) {
  RingGroup group(2, {.layout = {3000}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  Floats elsewhere = zero_buckets({3000});
  group[0].ring.give(0, group[0].in[0].data(), elsewhere[0].data());
  group[1].give_all();
  group.begin(epoch, 1, {1, 1});
  ASSERT_TRUE(group[1].events_seen.reduced({epoch.epoch, 1}).has_value());
  ASSERT_TRUE(group[0].events_seen.reduced({epoch.epoch, 1}).has_value());
  const Floats sum = group.expected(epoch, {1, 1});
  EXPECT_TRUE(same_bits(group[1].out, sum));
  EXPECT_TRUE(same_bits(elsewhere, sum));
}

// Two members, of which the second receives nothing from the first after a certain frame.
struct RingWithHeldFrames {
  explicit RingWithHeldFrames(int frames)
      : proxy(
            group[1].ring.port(),
            {.hold_at = frame_of(Epoch{}, Handshake{}).size() +
                 static_cast<std::size_t>(frames) * kHeaderBytes,
             .holds_end = true}) {}

  void reduce() {
    auto seen = epoch;
    seen.members[1].port = proxy.port();
    group[1].ring.join(epoch);
    group[0].ring.join(seen);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
      group[i].give_all();
    }
    group.begin(epoch, 1, {1, 1});
    ASSERT_TRUE(proxy.holds());
  }
  void overwrite(Floats& floats) {
    std::fill(floats[0].begin(), floats[0].end(), 1e30F);
  }

  RingGroup group{2, {.layout = {1000}, .way = DataPath::kShared}};
  const RingMembership epoch = group.epoch(1);
  const Attempt attempt{epoch.epoch, 1};
  Proxy proxy;
};

TEST(RingShared, WhoReadsASumAfterItsOwnerHasWrittenThereDoesNotVoteForIt) {
  RingWithHeldFrames held(1);  // The part to add arrives, the sum does not.
  auto& group = held.group;
  held.reduce();
  ASSERT_TRUE(group[0].events_seen.reduced(held.attempt).has_value());

  // It goes on without the other member's vote.
  group[0].ring.forget();
  held.overwrite(group[0].in);
  held.overwrite(group[0].out);
  group[0].give_all();
  group[0].ring.begin({held.epoch.epoch, 2}, {1, 1});
  held.proxy.release();

  const auto failure = group[1].events_seen.failed(held.epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kStopped);
  EXPECT_EQ(failure->accused, 1U);
  EXPECT_THAT(
      failure->reason,
      HasSubstr("replica 0 has decided step 1 before its sum was read here"));
  EXPECT_EQ(group[1].ring.counters().reductions, 0U);
}

TEST(RingShared, WhoReadsASumTooLateDoesNotWaitForTheNextOne) {
  RingWithHeldFrames held(1);
  auto& group = held.group;
  held.reduce();
  ASSERT_TRUE(group[0].events_seen.reduced(held.attempt).has_value());
  group[0].ring.forget();  // Its program has ended, too.
  held.proxy.release();
  const auto failure = group[1].events_seen.failed(held.epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->accused, 1U);
}

TEST(RingShared, TheSameWhereItsOwnerBeginsAgainInAnotherEpoch) {
  RingWithHeldFrames held(1);
  auto& group = held.group;
  held.reduce();
  ASSERT_TRUE(group[0].events_seen.reduced(held.attempt).has_value());

  group[0].ring.stop(held.epoch.epoch);
  const auto alone = group.epoch(2, {0});
  group[0].ring.join(alone);
  ASSERT_TRUE(group[0].events_seen.joined(alone.epoch));
  group[0].ring.begin({alone.epoch, 1}, {1});
  ASSERT_TRUE(group[0].events_seen.reduced({alone.epoch, 1}).has_value());
  held.proxy.release();

  const auto failure = group[1].events_seen.failed(held.epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kStopped);
  EXPECT_EQ(failure->accused, 0U);
  EXPECT_EQ(group[1].ring.counters().reductions, 0U);
}

TEST(RingShared, ASumIsStillReadAfterItsOwnerHasLeftTheEpoch) {
  RingWithHeldFrames held(1);
  auto& group = held.group;
  held.reduce();
  ASSERT_TRUE(group[0].events_seen.reduced(held.attempt).has_value());
  group[0].ring.stop(held.epoch.epoch);
  held.proxy.release();
  group.expect_reduced(held.epoch, 1, {1, 1});
}

TEST(RingShared, APartThatWasHeldIsNotTakenAfterItsOwnerHasStopped) {
  // Two of three frames arrive; the second member has not given anything.
  RingWithHeldFrames held(1);
  auto& group = held.group;
  auto seen = held.epoch;
  seen.members[1].port = held.proxy.port();
  group[1].ring.join(held.epoch);
  group[0].ring.join(seen);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(held.epoch.epoch));
  }
  group[0].give_all();
  group.begin(held.epoch, 1, {1, 1});
  ASSERT_TRUE(
      wait_until([&] { return group[1].ring.counters().received_bytes > 0; }));
  group[0].ring.stop(held.epoch.epoch);
  held.overwrite(group[0].in);

  const auto sent = group[1].ring.counters().sent_bytes;
  group[1].give_all();
  ASSERT_TRUE(held.proxy.holds());  // The stop message.
  held.proxy.release();

  const auto failure = group[1].events_seen.failed(held.epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kStopped);
  EXPECT_EQ(failure->accused, 0U);
  EXPECT_THAT(failure->reason, HasSubstr("replica 0 has stopped"));
  EXPECT_LE(group[1].ring.counters().sent_bytes, sent + 500 * sizeof(float));
}

// Only segments with a name of sherd's, since those of other programs come and go.
std::size_t segments() {
  std::size_t count = 0;
  for (const auto& one : std::filesystem::directory_iterator("/dev/shm")) {
    count += one.path().filename().string().starts_with("sherd") ? 1 : 0;
  }
  return count;
}

// It dies while others read its memory and while it reads theirs.
TEST(RingSharedKill, F56InMidCopyIsNoticedAndRepeatedAndLeavesNoSegment) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Layout layout = {1000000, 1000000};
  const std::size_t open_before = descriptors();
  const std::size_t segments_before = segments();
  for (int round = 0; round < 8; ++round) {
    ChildReplica child(
        {.replica = 2,
         .layout = layout,
         .buckets = 2,
         .memory = Memory::kShared});
    RingGroup group(2, {.layout = layout, .way = DataPath::kShared});
    const Floats in = group[0].in;
    auto epoch = group.epoch(1);
    epoch.members.insert(
        epoch.members.begin() + static_cast<std::ptrdiff_t>(random() % 3),
        child.member());
    child.join(epoch);
    for (int i = 0; i < 2; ++i) {
      group[i].ring.join(epoch);
      group[i].give_all();
    }
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
      group[i].ring.begin({epoch.epoch, 1}, {1, 1, 1});
    }
    // Somewhere in the first nine tenths of what is still to come, after the first window: by then
    // each member has read from its neighbour.
    const std::uint64_t enough = 65536 + random() % 9500000;
    const SteadyClock clock;
    const Instant until = clock.now() + kTestDeadline;
    while (group[0].ring.counters().received_bytes < enough &&
           clock.now() < until) {
    }
    const Instant killed = clock.now();
    child.signal(SIGKILL);
    for (int i = 0; i < 2; ++i) {
      const auto failure = group[i].events_seen.failed(epoch.epoch);
      ASSERT_TRUE(failure.has_value());
      EXPECT_EQ(failure->fault, RingFault::kLost) << failure->reason;
      EXPECT_EQ(failure->accused, 2U) << failure->reason;
      EXPECT_GT(group[i].ring.counters().shared_bytes, 0U);
      EXPECT_FALSE(group[i].ring.progress().attempt.has_value());
    }
    EXPECT_LT(seconds(clock.now() - killed), 4.0);
    EXPECT_EQ(mappings(), 2U) << "those of the two members alone";

    const auto next = group.epoch(2);
    ASSERT_TRUE(group.join(next));
    group.begin(next, 1, {1, 1});
    group.expect_reduced(next, 1, {1, 1});
    EXPECT_TRUE(same_bits(group[0].in, in));
  }
  EXPECT_EQ(mappings(), 0U);
  EXPECT_EQ(descriptors_down_to(open_before), open_before);
  EXPECT_EQ(segments(), segments_before);
}

}  // namespace
}  // namespace sherd::ft::ring
