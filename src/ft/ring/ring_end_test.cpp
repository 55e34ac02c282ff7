// SPDX-License-Identifier: Apache-2.0
//
// What a member reports when its epoch ends: a sum that it has, and the right member to blame.
#include <poll.h>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/ring/frame.h"
#include "ft/ring/handshake_queue.h"
#include "ft/ring/ring_communicator.h"
#include "ft/ring/ring_testing.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

// The next member no longer reads, so that the last frame stays here.
TEST(RingEnd, AMemberThatHasTheWholeSumTellsItThoughItsLastFrameIsNotSent) {
  const Layout layout = {std::int64_t{8} << 20U};
  const std::size_t half = (std::size_t{4} << 20U) * sizeof(float);
  RingGroup group(2, {.layout = layout, .chunk_bytes = half, .slots = 1});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  Proxy proxy(
      group[1].ring.port(), {.hold_at = greeting + 2 * kHeaderBytes + half});
  const auto epoch = join_behind(group, proxy);
  group.begin(epoch, 1, {1, 1});
  // There is only one slice.
  ASSERT_TRUE(wait_until([&] { return slices_done_of(group[0].ring) == 1; }));
  group[1].ring.stop(epoch.epoch);
  EXPECT_EQ(
      group[0].events_seen.reduced({epoch.epoch, 1}),
      digest_of(group.expected(group.epoch(1), {1, 1})));
  EXPECT_TRUE(group[0].events_seen.failed(epoch.epoch).has_value());
}

// The others may commit a step without this member, whose sum arrives together with the next step.
TEST(RingEnd, AMemberReportsItsSumThoughTheNextStepArrivesWithIt) {
  RingGroup group(2, {.layout = {1000}});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  const std::size_t half = 500 * sizeof(float);
  Proxy proxy(
      group[1].ring.port(), {.hold_at = greeting + kHeaderBytes + half});
  const auto epoch = join_behind(group, proxy);
  group.begin(epoch, 1, {1, 1});
  // The first member goes on alone to the next step and sends its part of that.
  ASSERT_TRUE(group[0].events_seen.reduced({epoch.epoch, 1}).has_value());
  group[0].ring.forget();
  group[0].give_all();
  group[0].ring.begin({epoch.epoch, 2}, {1, 1});
  ASSERT_TRUE(wait_until(
      [&] { return group[0].ring.counters().sent_bytes == 3 * half; }));
  proxy.release();
  ASSERT_TRUE(group[1].events_seen.reduced_unless_failed({epoch.epoch, 1}))
      << group[1].events_seen.failed(epoch.epoch)->reason;
  group[1].ring.forget();
  group[1].give_all();
  group[1].ring.begin({epoch.epoch, 2}, {1, 1});
  group.expect_reduced(epoch, 2, {1, 1});
  EXPECT_FALSE(group[1].events_seen.has_failed(epoch.epoch));
}

// The last member no longer reads, so that the second one cannot end the step although it has the
// whole sum.
TEST(RingEnd, AMemberThatCannotEndItsStepBeforeTheNextOneAccusesItself) {
  const std::int64_t third = std::int64_t{4} << 20U;
  const std::size_t bytes = static_cast<std::size_t>(third) * sizeof(float);
  RingGroup group(3, {.layout = {3 * third}, .chunk_bytes = bytes, .slots = 1});
  const std::size_t greeting = frame_of(Epoch{}, Handshake{}).size();
  Proxy proxy(
      group[2].ring.port(),
      {.hold_at = greeting + 4 * kHeaderBytes + 3 * bytes});
  auto epoch = group.epoch(1);
  for (const int i : {0, 2}) {
    group[i].ring.join(epoch);
  }
  epoch.members[2].port = proxy.port();
  group[1].ring.join(epoch);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(group[i].events_seen.joined(epoch.epoch));
    group[i].give_all();
  }
  group.begin(epoch, 1, {1, 1, 1});
  ASSERT_TRUE(group[0].events_seen.reduced({epoch.epoch, 1}).has_value());
  group[0].ring.forget();
  group[0].give_all();
  group[0].ring.begin({epoch.epoch, 2}, {1, 1, 1});
  const auto failure = group[1].events_seen.failed(epoch.epoch);
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->fault, RingFault::kStopped) << failure->reason;
  EXPECT_EQ(failure->accused, 1U) << failure->reason;
  EXPECT_EQ(
      group[1].events_seen.reduced({epoch.epoch, 1}),
      digest_of(group.expected(group.epoch(1), {1, 1, 1})));
}

// The first member connects through a proxy that forwards nothing.
TEST(RingJoin, WhoIsNotAnsweredIsHeardBeforeWhoIsNotDialled) {
  RingGroup group(
      3, {.layout = {10}, .connect_timeout = std::chrono::seconds(2)});
  Proxy proxy(group[1].ring.port(), {.hold_at = 0});
  const auto epoch = group.epoch(1);
  auto through_proxy = epoch;
  through_proxy.members[1].port = proxy.port();
  // Its time begins first. Members that join after its end hear of that when they dial.
  group[0].ring.join(through_proxy);
  for (const int i : {1, 2}) {
    group[i].ring.join(epoch);
  }
  for (int i = 0; i < 3; ++i) {
    const auto failure = group[i].events_seen.failed(epoch.epoch);
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(failure->fault, RingFault::kUnreachable);
    EXPECT_EQ(failure->accused, 1U) << failure->reason;
    EXPECT_EQ(failure->reporter, 0U) << failure->reason;
  }
}

// The first of two members, without a thread. Time stands still unless a test changes it.
class SteppedMember {
 public:
  SteppedMember() { context_.run = kTestRun; }
  std::uint16_t port() const { return listening_.port; }
  void join(const RingMembership& epoch) {
    RingCommunicator::Route route{epoch, 0, {}};
    const RingMember& other = epoch.members[1];
    route.receivers.push_back(net::resolve(other.host, other.port));
    communicator_.emplace(context_, std::move(route), now_);
  }
  RingCommunicator& communicator() { return *communicator_; }
  // Moves its own connection on.
  void advance() { communicator_->advance(now_); }
  void advance_connections() {
    handshakes_.advance(now_);
    handshakes_.decide_ready([this](HandshakeQueue::IncomingPeer& caller) {
      communicator_->accept(std::move(caller.link), caller.handshake);
      return HandshakeQueue::Disposition::kDone;
    });
    advance();
    handshakes_.accept_waiting(listening_.socket.get(), now_);
  }
  // Whether something has arrived on the connection that it dialled, which stays unread.
  bool has_received() const {
    std::vector<pollfd> list;
    communicator_->polls(list);
    return !list.empty() && ::poll(list.data(), 1, 0) == 1 &&
        (list[0].revents & POLLIN) != 0;
  }
  void stand_still(Duration time) { now_ += time; }

 private:
  RingContext context_{
      {.replica = 0,
       .incarnation = 100,
       .elements = {10},
       .chunk_bytes = 4096,
       .slots = 4}};
  const net::ListeningSocket listening_ =
      std::move(net::listen_on("127.0.0.1")).value();
  HandshakeQueue handshakes_{context_.options, context_.counters};
  Instant now_ = Instant(std::chrono::seconds(100));
  std::optional<RingCommunicator> communicator_;
};

// How far the member is with its connection when it stands still.
enum class Stands { kBeforeItDials, kBeforeItGreets, kBeforeItIsAnswered };

// Returns false if nothing was learnt, because this thread really stood still: the other member
// expects a handshake within a second.
bool joins_after_it_stood_still(Stands moment) {
  SCOPED_TRACE(static_cast<int>(moment));
  RingGroup group(
      2, {.layout = {10}, .connect_timeout = std::chrono::minutes(1)});
  SteppedMember member;
  const auto is_refused = [&] {
    const auto counters = group[1].ring.counters();
    return counters.silent_connections + counters.stale_connections > 0;
  };
  const auto receives = [&] {
    return wait_until([&] { return member.has_received() || is_refused(); });
  };
  auto epoch = group.epoch(1);
  epoch.members[0].port = member.port();
  member.join(epoch);
  // Without the epoch the other one does not answer yet, so that the answer is not read at once.
  const bool answers_later = moment == Stands::kBeforeItIsAnswered;
  if (!answers_later) {
    group[1].ring.join(epoch);
  }
  if (moment != Stands::kBeforeItDials) {
    member.advance();
    EXPECT_TRUE(receives()) << "the challenge";
  }
  if (answers_later) {
    member.advance();  // Connected.
    member.advance();
    group[1].ring.join(epoch);
    EXPECT_TRUE(receives()) << "the answer";
  }
  member.stand_still(std::chrono::seconds(10));
  EXPECT_TRUE(wait_until([&] {
    member.advance_connections();
    return member.communicator().ended() ||
        member.communicator().take_joined() || is_refused();
  }));
  if (is_refused()) {
    return false;
  }
  EXPECT_FALSE(member.communicator().ended())
      << member.communicator().ending().reason;
  EXPECT_TRUE(group[1].events_seen.joined(epoch.epoch));
  return true;
}

// The other one is well, and has answered all that it was told.
TEST(RingJoin, AMemberThatStoodStillDoesNotBlameTheOther) {
  for (const auto moment :
       {Stands::kBeforeItDials, Stands::kBeforeItGreets,
        Stands::kBeforeItIsAnswered}) {
    int tries = 1;
    while (!joins_after_it_stood_still(moment) && !HasFailure()) {
      ASSERT_LT(++tries, 20);
    }
  }
}

TEST(RingJoin, AMemberThatStoodStillWaitsOnceMoreForWhoDoesNotAnswer) {
  RingGroup group(2, {.layout = {10}});
  const auto silent = std::move(net::listen_on("127.0.0.1")).value();
  SteppedMember member;
  auto epoch = group.epoch(1);
  epoch.members[1].port = silent.port;
  member.join(epoch);
  member.advance();
  member.stand_still(std::chrono::seconds(10));
  member.advance();
  EXPECT_FALSE(member.communicator().ended());
  member.stand_still(std::chrono::seconds(1));
  member.advance();
  ASSERT_TRUE(member.communicator().ended());
  EXPECT_EQ(member.communicator().ending().fault, RingFault::kUnreachable);
  EXPECT_EQ(member.communicator().ending().accused, 1U);
}

}  // namespace
}  // namespace sherd::ft::ring
