// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/ring.h"

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/child_replica_testing.h"
#include "ft/ring/frame.h"
#include "ft/ring/ring_testing.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

using testing::HasSubstr;

// Longer for machines with few cores, where the thread that is waited for may have to wait for its
// turn. Sanitizers make everything slower, too.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlowness = 10;
#else
constexpr int kSlowness = 5;
#endif

bool reaches(Ring& ring, std::int64_t slices) {
  return wait_until([&] { return slices_done_of(ring) >= slices; });
}

// Waits until a counter has this value: a peer may see the effect before it is counted.
bool counts(Ring& ring, std::uint64_t RingCounters::* what, std::uint64_t n) {
  return wait_until([&] { return ring.counters().*what == n; });
}

void begin_all(RingGroup& group, const Epoch& epoch, std::size_t members) {
  for (int i = 0; i < group.size(); ++i) {
    group[i].ring.begin({epoch, 1}, std::vector<double>(members, 1.0));
  }
}

// The others accuse `replica` as expected, and reduce without it.
void expect_lost_and_repeat(
    RingGroup& group, const Epoch& epoch, ReplicaId replica, Instant killed) {
  const SteadyClock clock;
  for (int i = 0; i < group.size(); ++i) {
    const auto failure = group[i].events_seen.failed(epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kLost) << failure->reason;
    EXPECT_EQ(failure->accused, replica) << failure->reason;
  }
  EXPECT_LT(seconds(clock.now() - killed), 4.0);
  const auto next = group.epoch(epoch.number + 1);
  ASSERT_TRUE(group.join(next));
  const std::vector<double> weights(
      static_cast<std::size_t>(group.size()), 1.0);
  group.begin(next, 1, weights);
  group.expect_reduced(next, 1, weights);
}

class RingKill : public testing::TestWithParam<DataPath> {
 protected:
  // The memory of the child, which is the exception in a mixed ring.
  static Memory memory() {
    return GetParam() == DataPath::kShared ? Memory::kShared : Memory::kOwn;
  }
  // The data path of the others.
  static DataPath way() {
    return GetParam() == DataPath::kTcp ? DataPath::kTcp : DataPath::kShared;
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, RingKill, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

TEST_P(RingKill, InReduceScatterIsNoticedByAllAndRepeatedWithout) {
  // The child gives only the first bucket: all wait in the second.
  const Layout layout = {20000, 20000};
  ChildReplica child(
      {.replica = 4, .layout = layout, .buckets = 1, .memory = memory()});
  RingGroup group(4, {.layout = layout, .way = way()});
  auto epoch = group.epoch(1);
  epoch.members.insert(epoch.members.begin() + 2, child.member());
  child.join(epoch);
  for (int i = 0; i < 4; ++i) {
    group[i].ring.join(epoch);
    group[i].give_all();
  }
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
  }
  begin_all(group, epoch.epoch, 5);
  ASSERT_TRUE(reaches(group[0].ring, 4));
  const Instant killed = SteadyClock().now();
  child.signal(SIGKILL);
  expect_lost_and_repeat(group, epoch.epoch, 4, killed);
}

TEST_P(RingKill, InAllGatherIsNoticedAndRepeatedWithout) {
  const Layout layout = {1000};
  ChildReplica child(
      {.replica = 1, .layout = layout, .buckets = 1, .memory = memory()});
  RingGroup group(1, {.layout = layout, .way = way()});
  // The child sends a greeting, the part to sum, and the sum, which never arrives.
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  const std::size_t part =
      GetParam() == DataPath::kShared ? 0 : 500 * sizeof(float);
  Proxy proxy(
      group[0].ring.port(), {.hold_at = greeting + kHeaderBytes + part});
  auto epoch = group.epoch(1);
  epoch.members.push_back(child.member());
  auto seen_by_child = epoch;
  seen_by_child.members[0].port = proxy.port();
  child.join(seen_by_child);
  group[0].ring.join(epoch);
  ASSERT_TRUE(group[0].events_seen.joined(epoch.epoch));
  group[0].give_all();
  begin_all(group, epoch.epoch, 2);
  ASSERT_TRUE(proxy.holds());
  EXPECT_TRUE(counts(
      group[0].ring, &RingCounters::received_bytes, 500 * sizeof(float)));
  EXPECT_EQ(group[0].ring.progress().waits_for, 1U);
  const Instant killed = SteadyClock().now();
  child.signal(SIGKILL);
  expect_lost_and_repeat(group, epoch.epoch, 1, killed);
}

TEST_P(RingKill, AStoppedPeerHoldsNobodyWhoIsToldToStop) {
  const Layout layout = {400000};
  ChildReplica child(
      {.replica = 2, .layout = layout, .buckets = 1, .memory = memory()});
  RingGroup group(2, {.layout = layout, .way = way()});
  auto epoch = group.epoch(1);
  epoch.members.push_back(child.member());
  child.join(epoch);
  for (int i = 0; i < 2; ++i) {
    group[i].ring.join(epoch);
    group[i].give_all();
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
  }
  child.signal(SIGSTOP);
  begin_all(group, epoch.epoch, 3);
  const SteadyClock clock;
  for (int i = 0; i < 2; ++i) {
    const Instant begin = clock.now();
    group[i].ring.stop(epoch.epoch);
    EXPECT_LT(seconds(clock.now() - begin), 3.0);
  }
  const auto next = group.epoch(2);
  ASSERT_TRUE(group.join(next));
  group.begin(next, 1, {1, 1});
  group.expect_reduced(next, 1, {1, 1});
  // When it wakes up, no member takes its frames.
  child.signal(SIGCONT);
  EXPECT_EQ(group[0].ring.counters().stale_frames, 0U);
}

// ---- orderly ends ----

class RingStop : public testing::TestWithParam<DataPath> {};
INSTANTIATE_TEST_SUITE_P(Ways, RingStop, kAllDataPaths, [](const auto& one) {
  return name_of(one.param);
});

TEST_P(RingStop, AtRandomMomentsIsQuickAndLeavesNothingBehind) {
  constexpr std::uint64_t kRounds = 400;
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const Layout layout = {60000, 1000, 60000};
  const std::vector<double> weights = {1, 2, 3};
  const std::size_t before = descriptors();
  {
    RingGroup group(
        3,
        {.layout = layout,
         .chunk_bytes = 65536,
         .slots = 4,
         .way = GetParam()});
    const Floats in = group[1].in;
    const std::size_t idle = descriptors();
    group.give_all();
    const SteadyClock clock;
    std::vector<Duration> stop_times;
    for (std::uint64_t n = 1; n <= kRounds; ++n) {
      const auto epoch = group.epoch(n);
      ASSERT_TRUE(group.join(epoch));
      const auto sent = group[0].ring.counters().sent_bytes;
      group.begin(epoch, 1, weights);
      const auto enough = sent + random() % 700000;
      for (auto polls = random() % 3000;
           polls > 0 && group[0].ring.counters().sent_bytes < enough;) {
        --polls;
      }
      const int first = static_cast<int>(random() % 3);
      for (int i = 0; i < 3; ++i) {
        const Instant begin = clock.now();
        group[(first + i) % 3].ring.stop(epoch.epoch);
        stop_times.push_back(clock.now() - begin);
        // No ring writes there any more.
        group[(first + i) % 3].out[0].assign(layout[0], 0.0F);
      }
      for (int i = 0; i < 3; ++i) {
        // A member that heard of it before its own turn knows that no member has died.
        if (group[i].events_seen.has_failed(epoch.epoch)) {
          const auto failure = group[i].events_seen.failed(epoch.epoch);
          ASSERT_EQ(failure->fault, RingFault::kStopped) << failure->reason;
        }
        ASSERT_EQ(group[i].out[0], BucketValues(layout[0], 0.0F));
      }
    }
    std::sort(stop_times.begin(), stop_times.end());
    const Duration stop_p99 = stop_times[stop_times.size() * 99 / 100];
    EXPECT_LT(seconds(stop_p99), 0.01 * kSlowness);
    RecordProperty("stop_p99_us", std::to_string(seconds(stop_p99) * 1e6));
    EXPECT_LE(descriptors_down_to(idle), idle);
    const auto epoch = group.epoch(kRounds + 1);
    ASSERT_TRUE(group.join(epoch));
    group.begin(epoch, 1, weights);
    group.expect_reduced(epoch, 1, weights);
    EXPECT_TRUE(same_bits(group[1].in, in));
  }
  EXPECT_EQ(descriptors_down_to(before), before);
  EXPECT_EQ(mappings(), 0U);
}

TEST_P(RingStop, IsPassedOnToMembersThatAreNoNeighbours) {
  RingGroup group(7, {.layout = {100000}, .way = GetParam()});
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.begin(epoch, 1, std::vector<double>(7, 1.0));
  group[3].ring.stop(epoch.epoch);
  for (const int i : {0, 1, 2, 4, 5, 6}) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kStopped);
    EXPECT_EQ(failure->accused, 3U);
    EXPECT_EQ(failure->reporter, 3U);
  }
  EXPECT_FALSE(group[3].events_seen.has_failed(epoch.epoch));
}

TEST_P(RingStop, ARingThatIsDestroyedHasLeftAndIsNotLost) {
  RingGroup group(2, {.layout = {100000}, .way = GetParam()});
  auto third = std::make_unique<TestMember>(
      RingOptions{.replica = 9, .chunk_bytes = 4096, .slots = 4},
      Layout{100000}, 3,
      GetParam() == DataPath::kTcp ? Memory::kOwn : Memory::kShared);
  auto epoch = group.epoch(1);
  epoch.members.push_back({9, 0, "127.0.0.1", third->ring.port()});
  third->ring.join(epoch);
  for (int i = 0; i < 2; ++i) {
    group[i].ring.join(epoch);
  }
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
  }
  begin_all(group, epoch.epoch, 3);
  third.reset();
  for (int i = 0; i < 2; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kStopped) << failure->reason;
    EXPECT_EQ(failure->accused, 9U);
  }
}

// ---- damage and disagreement ----

void expect_damage_noticed(DataPath way, std::size_t at) {
  SCOPED_TRACE(testing::Message() << "byte " << at);
  RingGroup group(2, {.layout = {1000}, .way = way});
  Proxy proxy(group[1].ring.port(), {.flip_at = at});
  const auto epoch = join_behind(group, proxy);
  begin_all(group, epoch.epoch, 2);
  for (int i = 0; i < 2; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kChecksum) << failure->reason;
    EXPECT_EQ(failure->accused, 0U);
    EXPECT_EQ(failure->reporter, 1U);
    EXPECT_THAT(failure->reason, HasSubstr("checksum"));
  }
}

TEST(RingDamage, AByteOfAHeaderOfSharedMemoryIsNoticedBeforeItIsUsed) {
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  for (const std::size_t at :
       {greeting + 5, greeting + 70, greeting + kHeaderBytes + 80}) {
    expect_damage_noticed(DataPath::kShared, at);
  }
}

TEST(RingDamage, AByteChangedOnTheWayIsNoticedBeforeItIsUsed) {
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  const std::size_t payload = 500 * sizeof(float);
  // The byte is in a header, is the first or last byte of a part, or is in the whole sum.
  for (const std::size_t at :
       {greeting + 5, greeting + 30, greeting + kHeaderBytes,
        greeting + kHeaderBytes + payload - 1,
        greeting + 2 * kHeaderBytes + payload + 7}) {
    expect_damage_noticed(DataPath::kTcp, at);
  }
}

TEST(RingDamage, AResizedBucketFailsTheJoinAndNamesBothSides) {
  RingGroup group(2, {.layout = {10, 20}});
  TestMember odd(
      {.replica = 2, .incarnation = 102, .chunk_bytes = 4096, .slots = 4},
      {10, 21}, 1);
  auto epoch = group.epoch(1);
  epoch.members.push_back({2, 102, "127.0.0.1", odd.ring.port()});
  for (auto* one : {&group[0], &group[1], &odd}) {
    one->ring.join(epoch);
  }
  for (auto* one : {&group[0], &group[1], &odd}) {
    const auto failure = one->events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kMismatch);
    EXPECT_THAT(failure->reason, HasSubstr("2 buckets of 30 floats"));
    EXPECT_THAT(failure->reason, HasSubstr("2 buckets of 31 floats"));
  }
}

const std::size_t kChallengeBytes = challenge_frame(1).size();

// A hand-made neighbour of member 0, in a ring of two.
class ScriptedPeer {
 public:
  explicit ScriptedPeer(RingGroup& group) : group_(group) {
    listening_ = std::move(net::listen_on("127.0.0.1")).value();
    hello_.run = kTestRun;
    hello_.from = 1;
    hello_.from_incarnation = 101;
    hello_.to = 0;
    hello_.to_incarnation = 100;
    hello_.members = 2;
    hello_.window = 4;
    hello_.chunk_elements = 1024;
  }
  RingMembership epoch(std::uint64_t number) {
    auto epoch = group_.epoch(number, {0});
    epoch.members.push_back({1, 101, "127.0.0.1", listening_.port});
    return epoch;
  }
  // Takes the connection of member 0, and copies from its greeting what must be the same.
  void answer(const RingMembership& epoch) {
    pollfd ready{listening_.socket.get(), POLLIN, 0};
    ASSERT_EQ(1, ::poll(&ready, 1, 10000));
    from_.socket = Descriptor(
        ::accept4(listening_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
    ASSERT_TRUE(from_.send(challenge_frame(1)));
    const std::string frame =
        from_.receive(frame_of(Epoch{}, Handshake{}).size());
    const auto theirs = parse_handshake(frame.substr(kHeaderBytes));
    ASSERT_TRUE(theirs.ok());
    hello_.buckets = theirs.value().buckets;
    hello_.elements = theirs.value().elements;
    hello_.layout = theirs.value().layout;
    hello_.proof =
        proof_of(epoch.epoch, hello_, key_here, theirs.value().challenge);
    ASSERT_TRUE(from_.send(frame_of(epoch.epoch, hello_)));
  }
  // Connects to member 0.
  Connected call(const Epoch& epoch) { return call(epoch, hello_); }
  Connected call(const Epoch& epoch, Handshake handshake) {
    Connected connected = connect_to(group_[0].ring.port());
    const auto theirs = parse_challenge(
        connected.receive(kChallengeBytes).substr(kHeaderBytes));
    EXPECT_TRUE(theirs.ok());
    handshake.proof =
        proof_of(epoch, handshake, key_there, theirs.ok() ? theirs.value() : 0);
    said = frame_of(epoch, handshake);
    EXPECT_TRUE(connected.send(said));
    return connected;
  }
  const Handshake& handshake() const { return hello_; }

  RingKey key_here;   // The key that it takes for its own,
  RingKey key_there;  // and the one for member 0's.
  std::string said;   // What it sent in the last connection.

 private:
  RingGroup& group_;
  net::ListeningSocket listening_;
  Handshake hello_;
  Connected from_;
};

std::string text_in(Connected& connected) {
  const std::string got = connected.receive(100000);
  return got.size() < kHeaderBytes ? "" : got.substr(kHeaderBytes);
}

TEST(RingDamage, FramesThatAreSkippedReorderedOrResizedFailWithBothIdeas) {
  struct Case {
    void (*change)(FrameHeader&);
    const char* reason;
  };
  const Case cases[] = {
      {[](FrameHeader& h) { h.slice = 1; },
       "expected elements 49 to 97 of bucket 1"},
      {[](FrameHeader& h) { h.ring_step = 1; },
       "expected step 0 of slice 0, found step 1"},
      {[](FrameHeader& h) { h.payload_bytes = 196; },
       "found 49 elements from 50 of bucket 0"},
      {[](FrameHeader& h) { h.bucket = 1; }, "from 50 of bucket 1"},
      {[](FrameHeader& h) { h.slice = 1000; }, "expected slices below 2"},
      {[](FrameHeader& h) { h.step = 2; }, "expected step 1, found"},
      {[](FrameHeader& h) { h.kind = FrameKind::kSharedData; },
       "in shared memory, found place 0 under lease 0"},
      {[](FrameHeader& h) { h.epoch.number = 9; },
       "expected frames of epoch 1.1, found one of epoch 1.9"}};
  for (const auto& one : cases) {
    SCOPED_TRACE(one.reason);
    RingGroup group(1, {.layout = {100, 98}});
    ScriptedPeer peer(group);
    const auto epoch = peer.epoch(1);
    group[0].ring.join(epoch);
    peer.answer(epoch);
    Connected to = peer.call(epoch.epoch);
    ASSERT_TRUE(group[0].events_seen.joined(epoch.epoch));
    group[0].ring.begin({epoch.epoch, 1}, {1, 1});
    FrameHeader header;
    header.epoch = epoch.epoch;
    header.step = 1;
    header.segment = 1;
    header.first_element = 50;
    header.payload_bytes = 200;
    one.change(header);
    const HeaderBytes bytes = bytes_of(header);
    ASSERT_TRUE(to.send({bytes.data(), bytes.size()}));
    const auto failure = group[0].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kMismatch);
    EXPECT_EQ(failure->accused, 1U);
    EXPECT_THAT(failure->reason, HasSubstr(one.reason));
  }
}

// ---- unexpected connections ----

TEST(RingStrangers, AreClosedAndCountedAndNobodyIsDisturbed) {
  RingGroup group(2, {.layout = {1000}});
  std::mt19937_64 random(31);
  for (int i = 0; i < 20; ++i) {
    Connected stranger = connect_to(group[0].ring.port());
    std::string bytes(200, '\0');
    for (auto& byte : bytes) {
      byte = static_cast<char>(random());
    }
    stranger.send(bytes);
    EXPECT_LE(stranger.receive(1000).size(), kChallengeBytes)
        << "closed without an answer";
  }
  EXPECT_TRUE(counts(group[0].ring, &RingCounters::refused_connections, 20U));
  // There are more silent connections than there is room for, and none may stay forever.
  std::vector<Connected> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(connect_to(group[0].ring.port()));
  }
  const auto epoch = group.epoch(1);
  ASSERT_TRUE(group.join(epoch));
  group.give_all();
  group.begin(epoch, 1, {1, 1});
  group.expect_reduced(epoch, 1, {1, 1});
  for (auto& one : silent) {
    EXPECT_EQ(one.receive(1000).size(), kChallengeBytes);
  }
  EXPECT_TRUE(counts(group[0].ring, &RingCounters::silent_connections, 50U));
}

TEST(RingStrangers, OfStaleEpochsOtherRunsAndLivesAreToldWhy) {
  RingGroup group(1, {.layout = {1000}});
  ScriptedPeer peer(group);
  const auto epoch = peer.epoch(5);
  group[0].ring.join(epoch);
  peer.answer(epoch);
  Connected to = peer.call(epoch.epoch);
  ASSERT_TRUE(group[0].events_seen.joined(epoch.epoch));

  Connected stale = peer.call({1, 4});
  EXPECT_THAT(text_in(stale), HasSubstr("epoch 1.4 is over here"));
  Connected again = peer.call(epoch.epoch);
  EXPECT_THAT(text_in(again), HasSubstr("replica 1 is connected already"));
  const auto as = [&](void (*change)(Handshake&)) {
    Handshake handshake = peer.handshake();
    change(handshake);
    Connected one = peer.call(epoch.epoch, handshake);
    return text_in(one);
  };
  EXPECT_THAT(
      as([](Handshake& h) { h.run = 1; }), HasSubstr("this is another run"));
  EXPECT_THAT(
      as([](Handshake& h) { h.to_incarnation = 99; }),
      HasSubstr("this is rank 0 of replica 0 in life 100"));
  EXPECT_THAT(
      as([](Handshake& h) { h.shard_rank = 1; }), HasSubstr("this is rank 0"));
  EXPECT_THAT(
      as([](Handshake& h) { h.from_incarnation = 1; }),
      HasSubstr("expected replica 1 in life 101, found replica 1 in life 1"));
  EXPECT_TRUE(counts(group[0].ring, &RingCounters::stale_connections, 1U));
  EXPECT_TRUE(counts(group[0].ring, &RingCounters::refused_connections, 5U));
  EXPECT_FALSE(group[0].events_seen.has_failed(epoch.epoch));
}

TEST(RingStrangers, WhoDoNotKnowTheKeyAreRefusedWhateverElseTheyKnow) {
  RingGroup group(1, {.layout = {1000}});
  const RingKey key{17, 18};
  group[0].ring.set_run(kTestRun, key);
  ScriptedPeer peer(group);
  auto epoch = peer.epoch(1);
  epoch.members[1].key = peer.key_here = {19, 20};
  group[0].ring.join(epoch);
  peer.answer(epoch);
  for (const RingKey& wrong : {RingKey{}, RingKey{17, 19}, RingKey{19, 20}}) {
    peer.key_there = wrong;
    Connected stranger = peer.call(epoch.epoch);
    EXPECT_THAT(text_in(stranger), HasSubstr("the key is another one"));
  }
  EXPECT_TRUE(counts(group[0].ring, &RingCounters::refused_connections, 3U));
  EXPECT_FALSE(group[0].events_seen.has_failed(epoch.epoch));
  peer.key_there = key;
  Connected member = peer.call(epoch.epoch);
  EXPECT_TRUE(group[0].events_seen.joined(epoch.epoch));
  // A proof from one connection proves nothing in another one.
  Connected again = connect_to(group[0].ring.port());
  again.receive(kChallengeBytes);
  EXPECT_TRUE(again.send(peer.said));
  EXPECT_THAT(text_in(again), HasSubstr("the key is another one"));
  EXPECT_FALSE(group[0].events_seen.has_failed(epoch.epoch));
}

TEST(RingStrangers, WhoAnswersWithoutTheKeyIsNoMember) {
  RingGroup group(1, {.layout = {1000}});
  ScriptedPeer peer(group);
  auto epoch = peer.epoch(1);
  epoch.members[1].key = {19, 20};
  group[0].ring.join(epoch);
  peer.answer(epoch);
  const auto failure = group[0].events_seen.failed(epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kMismatch);
  EXPECT_EQ(failure->accused, 1U);
  EXPECT_THAT(failure->reason, HasSubstr("does not know its key"));
}

TEST(RingStrangers, APeerThatIsFasterWaitsForTheEpochToBeKnown) {
  RingGroup group(2, {.layout = {1000}});
  const auto epoch = group.epoch(1);
  group[0].ring.join(epoch);
  // The other member has connected by the time this one hears of the epoch.
  const SteadyClock clock;
  const Instant until = clock.now() + std::chrono::milliseconds(100);
  while (clock.now() < until) {
    EXPECT_FALSE(group[0].events_seen.has_failed(epoch.epoch));
  }
  group[1].ring.join(epoch);
  EXPECT_TRUE(group[0].events_seen.joined(epoch.epoch));
  EXPECT_TRUE(group[1].events_seen.joined(epoch.epoch));
}

TEST(RingStrangers, FindNobodyHomeWithoutDescriptorsAndEverybodyAfter) {
  RingGroup group(2, {.layout = {1000}});
  const auto epoch = group.epoch(1);
  rlimit before = {};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before));
  Connected caller = connect_to(group[0].ring.port());
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &none));
  group[0].ring.join(epoch);
  const auto failure = group[0].events_seen.failed(epoch.epoch);
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &before));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kResources);
  EXPECT_EQ(failure->accused, 0U) << "nobody else is to blame";
  const auto next = group.epoch(2);
  ASSERT_TRUE(group.join(next));
}

// ---- absent members ----

TEST(RingJoin, AMemberWithoutAProcessIsAccusedAtOnce) {
  RingGroup group(2, {.layout = {10}});
  std::uint16_t nobody = 0;
  {
    nobody = std::move(net::listen_on("127.0.0.1")).value().port;
  }
  auto epoch = group.epoch(1);
  epoch.members.push_back({9, 1, "127.0.0.1", nobody});
  for (int i = 0; i < 2; ++i) {
    group[i].ring.join(epoch);
  }
  for (int i = 0; i < 2; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kUnreachable);
    EXPECT_EQ(failure->accused, 9U);
    EXPECT_THAT(failure->reason, HasSubstr("Connection refused"));
  }
}

TEST(RingJoin, AMemberThatNeverAnswersIsAccusedAfterTheTimeout) {
  const auto silent = std::move(net::listen_on("127.0.0.1")).value();
  TestMember member(
      {.replica = 0, .connect_timeout = std::chrono::milliseconds(200)}, {10},
      1);
  const RingMembership epoch{
      {1, 1},
      {{0, 0, "127.0.0.1", member.ring.port()},
       {1, 1, "127.0.0.1", silent.port}}};
  member.ring.join(epoch);
  const auto failure = member.events_seen.failed(epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kUnreachable);
  EXPECT_EQ(failure->accused, 1U);
  EXPECT_THAT(failure->reason, HasSubstr("within 0.2 s"));
}

TEST(RingJoin, AHostWithoutAnAddressIsNamed) {
  TestMember member({.replica = 0}, {10}, 1);
  const RingMembership epoch{
      {1, 1},
      {{0, 0, "127.0.0.1", member.ring.port()}, {1, 1, "no host.invalid", 1}}};
  member.ring.join(epoch);
  const auto failure = member.events_seen.failed(epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kUnreachable);
  EXPECT_THAT(failure->reason, HasSubstr("no host.invalid"));
}

}  // namespace
}  // namespace sherd::ft::ring
