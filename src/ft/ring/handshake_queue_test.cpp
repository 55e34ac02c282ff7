// SPDX-License-Identifier: Apache-2.0
#include "ft/ring/handshake_queue.h"

#include <poll.h>
#include <sys/resource.h>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <gtest/gtest.h>
#include "ft/ring/frame.h"
#include "ft/ring/frame_testing.h"
#include "ft/ring/ring_testing.h"
#include "net/tcp_socket.h"

namespace sherd::ft::ring {
namespace {

// A queue at a listener, without a thread. Time stands still unless a test changes it.
struct QueueAtListener {
  std::size_t size() const {
    std::vector<pollfd> list;
    queue.polls(list);
    return list.size();
  }
  // Advances the queue once something has arrived at that connection, the oldest being the first.
  void advance_when_readable(std::size_t connection) {
    std::vector<pollfd> list;
    queue.polls(list);
    ASSERT_LT(connection, list.size());
    constexpr auto kLimit =
        std::chrono::duration_cast<std::chrono::milliseconds>(kTestDeadline);
    ASSERT_EQ(
        1, ::poll(&list[connection], 1, static_cast<int>(kLimit.count())));
    queue.advance(now);
  }
  void accept(std::size_t connections) {
    EXPECT_TRUE(wait_until([&] {
      queue.accept_waiting(listening.socket.get(), now);
      return size() == connections;
    }));
  }
  // The handshake that has arrived; nullopt if none has.
  std::optional<Handshake> taken() {
    std::optional<Handshake> found;
    queue.decide_ready([&](const HandshakeQueue::IncomingPeer& peer) {
      found = peer.handshake;
      return HandshakeQueue::Disposition::kDone;
    });
    return found;
  }

  const RingOptions options;
  RingCounters counters;
  Instant now = Instant(std::chrono::seconds(100));
  const net::ListeningSocket listening =
      std::move(net::listen_on("127.0.0.1")).value();
  HandshakeQueue queue{options, counters};
};

TEST(HandshakeQueue, ReadsAHandshakeThatIsInterruptedByTheEndOfAnOlderOne) {
  QueueAtListener at;
  Connected first = connect_to(at.listening.port);
  Connected second = connect_to(at.listening.port);
  at.accept(2);
  test::RandomMessages random(1);
  const Handshake sent = test::random_handshake(random);
  const std::string frame = frame_of(Epoch{1, 2}, sent);
  const std::size_t half = kHeaderBytes + 20;
  ASSERT_TRUE(second.send(std::string_view(frame).substr(0, half)));
  at.advance_when_readable(1);
  first.socket.close();
  at.advance_when_readable(0);
  ASSERT_EQ(at.size(), 1U);
  ASSERT_TRUE(second.send(std::string_view(frame).substr(half)));
  at.advance_when_readable(0);
  EXPECT_EQ(at.taken(), sent);
}

TEST(HandshakeQueue, TakesAHandshakeThatArrivedWhileItsProcessStoodStill) {
  QueueAtListener at;
  Connected peer = connect_to(at.listening.port);
  at.accept(1);
  test::RandomMessages random(1);
  const Handshake sent = test::random_handshake(random);
  ASSERT_TRUE(peer.send(frame_of(Epoch{1, 2}, sent)));
  at.now += std::chrono::seconds(10);
  at.advance_when_readable(0);
  EXPECT_EQ(at.taken(), sent);
  EXPECT_EQ(at.counters.silent_connections, 0U);
}

// Otherwise the thread of the ring would not sleep any more.
TEST(HandshakeQueue, HasNothingToDoOnceThePauseWithoutDescriptorsIsOver) {
  QueueAtListener at;
  const Connected waiting = connect_to(at.listening.port);
  rlimit before = {};
  ASSERT_EQ(0, ::getrlimit(RLIMIT_NOFILE, &before));
  rlimit none = before;
  none.rlim_cur = 3;
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &none));
  at.queue.accept_waiting(at.listening.socket.get(), at.now);
  ASSERT_EQ(0, ::setrlimit(RLIMIT_NOFILE, &before));
  EXPECT_FALSE(at.queue.accepts(at.now));
  const auto next = at.queue.next_instant();
  ASSERT_TRUE(next.has_value());
  EXPECT_GT(*next, at.now);
  at.queue.advance(at.now);
  EXPECT_EQ(at.queue.next_instant(), next);
  at.now = *next;
  at.queue.advance(at.now);
  EXPECT_TRUE(at.queue.accepts(at.now));
  EXPECT_EQ(at.queue.next_instant(), std::nullopt);
  at.accept(1);
}

}  // namespace
}  // namespace sherd::ft::ring
