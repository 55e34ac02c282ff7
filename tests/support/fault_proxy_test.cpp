// SPDX-License-Identifier: Apache-2.0
//
// Each fault on real sockets: a client and a target, both of whose ends are in this process.
#include "support/fault_proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <cerrno>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "base/check.h"
#include "base/clock.h"
#include "base/descriptor.h"

namespace sherd::test {
namespace {

using std::chrono::milliseconds;

constexpr Duration kPatience = std::chrono::seconds(30);
constexpr std::int64_t kMiB = std::int64_t{1} << 20U;

bool wait_readable(const Descriptor& socket, Duration patience = kPatience) {
  pollfd polled = {socket.get(), POLLIN, 0};
  const auto left = std::chrono::ceil<milliseconds>(patience);
  return ::poll(&polled, 1, static_cast<int>(left.count())) > 0;
}

sockaddr_in loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  return address;
}

class Target {
 public:
  Target() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    SHERD_ASSERT(socket_.open());
    sockaddr_in address = loopback(0);
    socklen_t bytes = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_.get(), generic, bytes), 0);
    EXPECT_EQ(::listen(socket_.get(), 16), 0);
    EXPECT_EQ(::getsockname(socket_.get(), generic, &bytes), 0);
    port_ = ntohs(address.sin_port);
  }
  int port() const { return port_; }
  Descriptor accept() const {
    EXPECT_TRUE(wait_readable(socket_));
    return Descriptor(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

 private:
  Descriptor socket_;
  int port_ = 0;
};

Descriptor dial(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SHERD_ASSERT(socket.open());
  const sockaddr_in address = loopback(port);
  EXPECT_EQ(
      ::connect(
          socket.get(), reinterpret_cast<const sockaddr*>(&address),
          sizeof address),
      0);
  return socket;
}

void send_all(const Descriptor& socket, const std::string& bytes) {
  EXPECT_EQ(
      ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
      static_cast<ssize_t>(bytes.size()));
}

enum class End { kNone, kEnd, kReset };
struct Received {
  std::string bytes;
  End end = End::kNone;  // Set when what came before has arrived completely.
};

Received receive(const Descriptor& socket, std::size_t count) {
  Received received;
  std::string buffer(std::size_t{64} << 10U, '\0');
  while (received.bytes.size() < count) {
    if (!wait_readable(socket)) {
      ADD_FAILURE() << "nothing came";
      return received;
    }
    const ssize_t got = ::recv(
        socket.get(), buffer.data(),
        std::min(buffer.size(), count - received.bytes.size()), 0);
    if (got <= 0) {
      received.end = got == 0 ? End::kEnd : End::kReset;
      return received;
    }
    received.bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
  return received;
}
std::string text(const Descriptor& socket, std::size_t count) {
  return receive(socket, count).bytes;
}
End end_of(const Descriptor& socket) { return receive(socket, 1).end; }

// Whether nothing has arrived; certain only if the proxy has nothing in flight.
bool silent(const Descriptor& socket) {
  return !wait_readable(socket, milliseconds(0));
}

std::string noise(std::int64_t count) {
  std::string bytes(static_cast<std::size_t>(count), '\0');
  std::uint64_t state = 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56U);
  }
  return bytes;
}

class FaultProxyTest : public ::testing::Test {
 protected:
  struct Link {
    Descriptor client;
    Descriptor target;
  };
  Link connect() {
    Descriptor client = dial(proxy_.port());
    return {std::move(client), target_.accept()};
  }
  // Waits until the proxy has taken everything that was sent.
  bool wait_for_in(Direction direction, std::int64_t bytes) {
    return proxy_.wait_for([&](const Traffic& traffic) {
      return traffic.bytes_in[static_cast<int>(direction)] >= bytes;
    });
  }

  Target target_;
  FaultProxy proxy_{{.target_port = target_.port()}};
};

TEST_F(FaultProxyTest, ForwardsBothWaysAndCounts) {
  const Link link = connect();
  send_all(link.client, "hello");
  send_all(link.target, "you too");
  EXPECT_EQ(text(link.target, 5), "hello");
  EXPECT_EQ(text(link.client, 7), "you too");
  const Traffic traffic = proxy_.traffic();
  EXPECT_EQ(traffic.bytes_in[0], 5);
  EXPECT_EQ(traffic.bytes_out[0], 5);
  EXPECT_EQ(traffic.bytes_out[1], 7);
  EXPECT_EQ(traffic.connections, 1);
  EXPECT_EQ(traffic.open, 1);
}

TEST_F(FaultProxyTest, LargeStreamsArriveUnchanged) {
  const Link link = connect();
  const std::string sent = noise(8 * kMiB);
  std::string got;
  for (std::size_t at = 0; at < sent.size(); at += 64 << 10U) {
    send_all(link.client, sent.substr(at, 64 << 10U));
    got += text(link.target, 64 << 10U);
  }
  EXPECT_TRUE(got == sent);
}

TEST_F(FaultProxyTest, EndsOfStreamsPassOneByOne) {
  Link link = connect();
  send_all(link.client, "bye");
  ::shutdown(link.client.get(), SHUT_WR);
  EXPECT_EQ(text(link.target, 3), "bye");
  EXPECT_EQ(end_of(link.target), End::kEnd);
  send_all(link.target, "answer");
  EXPECT_EQ(text(link.client, 6), "answer");
  link.target.close();
  EXPECT_EQ(end_of(link.client), End::kEnd);
  EXPECT_TRUE(
      proxy_.wait_for([](const Traffic& now) { return now.open == 0; }));
}

TEST_F(FaultProxyTest, AResetOfOneEndReachesTheOther) {
  Link link = connect();
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(
      link.client.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  link.client.close();
  EXPECT_EQ(end_of(link.target), End::kReset);
}

TEST_F(FaultProxyTest, DelayHoldsEveryPieceAndKeepsTheirOrder) {
  const Link link = connect();
  proxy_.set(
      Direction::kToTarget,
      {.delay = milliseconds(60), .jitter = milliseconds(60)});
  const Instant sent = SteadyClock().now();
  for (int i = 0; i < 10; ++i) {
    send_all(link.client, std::to_string(i));
    ASSERT_TRUE(wait_for_in(Direction::kToTarget, i + 1));
  }
  EXPECT_EQ(text(link.target, 10), "0123456789");
  EXPECT_GE(SteadyClock().now() - sent, milliseconds(60));
  send_all(link.target, "x");
  EXPECT_EQ(text(link.client, 1), "x");
}

TEST_F(FaultProxyTest, BandwidthIsLimited) {
  const Link link = connect();
  proxy_.set(Direction::kToTarget, {.bytes_per_second = 1000000});
  const std::string sent = noise(200000);
  const Instant start = SteadyClock().now();
  send_all(link.client, sent);
  EXPECT_TRUE(text(link.target, sent.size()) == sent);
  const double took = seconds(SteadyClock().now() - start);
  EXPECT_GE(took, 0.17);  // The last pieces need not be waited for.
  EXPECT_LT(took, 5.0);
}

TEST_F(FaultProxyTest, APauseLosesNothing) {
  const Link link = connect();
  proxy_.set_both({.paused = true});
  send_all(link.client, "held");
  send_all(link.target, "too");
  EXPECT_EQ(proxy_.traffic().bytes_in[0], 0);
  EXPECT_TRUE(silent(link.target));
  proxy_.heal();
  EXPECT_EQ(text(link.target, 4), "held");
  EXPECT_EQ(text(link.client, 3), "too");
}

TEST_F(FaultProxyTest, ABlackHoleTakesAllAfterItsOffsetAndKeepsTheConnection) {
  Link link = connect();
  proxy_.set(Direction::kToTarget, {.black_hole_after = 3});
  send_all(link.client, "abcdef");
  EXPECT_EQ(text(link.target, 3), "abc");
  send_all(link.client, "ghi");
  ASSERT_TRUE(wait_for_in(Direction::kToTarget, 9));
  EXPECT_EQ(proxy_.traffic().bytes_out[0], 3);
  EXPECT_EQ(proxy_.traffic().strikes[0], 1);
  // Only one direction is affected; the end of the stream vanishes, too.
  send_all(link.target, "still here");
  EXPECT_EQ(text(link.client, 10), "still here");
  ::shutdown(link.client.get(), SHUT_WR);
  proxy_.heal();
  EXPECT_TRUE(silent(link.target));
  EXPECT_EQ(proxy_.traffic().open, 1);
  // A new connection is not affected.
  const Link next = connect();
  send_all(next.client, "x");
  EXPECT_EQ(text(next.target, 1), "x");
}

TEST_F(FaultProxyTest, AFaultAtZeroStrikesAnIdleConnectionAtOnce) {
  const Link link = connect();
  send_all(link.client, "x");
  EXPECT_EQ(text(link.target, 1), "x");
  proxy_.set(Direction::kToTarget, {.reset_after = 0});
  EXPECT_EQ(proxy_.traffic().open, 0);
  EXPECT_EQ(end_of(link.client), End::kReset);
  EXPECT_EQ(end_of(link.target), End::kReset);
}

TEST_F(FaultProxyTest, ClosesAfterSoManyBytes) {
  const Link link = connect();
  proxy_.set(Direction::kToClient, {.close_after = 4});
  send_all(link.target, "abcdef");
  EXPECT_EQ(text(link.client, 4), "abcd");
  EXPECT_EQ(end_of(link.client), End::kEnd);
  EXPECT_EQ(end_of(link.target), End::kEnd);
}

TEST_F(FaultProxyTest, ResetsAfterSoManyBytesWithinALargeStream) {
  const Link link = connect();
  proxy_.set(Direction::kToTarget, {.reset_after = 100001});
  send_all(link.client, noise(200000));
  const Received received = receive(link.target, 200000);
  EXPECT_LE(received.bytes.size(), 100001U);  // A reset overtakes bytes.
  EXPECT_EQ(received.end, End::kReset);
  EXPECT_EQ(proxy_.traffic().bytes_out[0], 100001);
}

TEST_F(FaultProxyTest, HalfClosesAndLetsTheOtherDirectionGoOn) {
  const Link link = connect();
  proxy_.set(Direction::kToTarget, {.half_close_after = 2});
  send_all(link.client, "abc");
  EXPECT_EQ(text(link.target, 2), "ab");
  EXPECT_EQ(end_of(link.target), End::kEnd);
  send_all(link.target, "goes on");
  EXPECT_EQ(text(link.client, 7), "goes on");
}

TEST_F(FaultProxyTest, FlipsOneBitOfTheByteAtItsOffset) {
  const Link link = connect();
  proxy_.set(Direction::kToTarget, {.flip_bit_at = 70000});
  const std::string sent = noise(100000);
  send_all(link.client, sent);
  const std::string got = text(link.target, sent.size());
  ASSERT_EQ(got.size(), sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) {
    const int changed = static_cast<unsigned char>(sent[i]) ^
        static_cast<unsigned char>(got[i]);
    ASSERT_EQ(changed, i == 70000 ? 1 : 0) << i;
  }
}

TEST_F(FaultProxyTest, StrikesNoMoreConnectionsThanItMay) {
  proxy_.set(Direction::kToTarget, {.reset_after = 1, .strikes_max = 1});
  const Link first = connect();
  send_all(first.client, "ab");
  EXPECT_EQ(end_of(first.client), End::kReset);
  const Link second = connect();
  send_all(second.client, "ab");
  EXPECT_EQ(text(second.target, 2), "ab");
  EXPECT_EQ(proxy_.traffic().strikes[0], 1);
}

TEST_F(FaultProxyTest, CutsAllConnectionsByCommand) {
  for (const End how : {End::kEnd, End::kReset}) {
    const Link one = connect();
    const Link other = connect();
    // Both connections reach the target and were not only accepted by the kernel.
    send_all(one.client, "1");
    EXPECT_EQ(text(one.target, 1), "1");
    send_all(other.client, "2");
    EXPECT_EQ(text(other.target, 1), "2");
    how == End::kEnd ? proxy_.close_connections() : proxy_.reset_connections();
    for (const Descriptor* socket :
         {&one.client, &one.target, &other.client, &other.target}) {
      EXPECT_EQ(end_of(*socket), how);
    }
  }
  EXPECT_EQ(proxy_.traffic().connections, 4);
  EXPECT_EQ(proxy_.traffic().open, 0);
}

TEST_F(FaultProxyTest, RefusesNewConnectionsWhileOldOnesGoOn) {
  const Link old = connect();
  send_all(old.client, "a");
  EXPECT_EQ(text(old.target, 1), "a");
  proxy_.refuse_connections();
  EXPECT_EQ(end_of(dial(proxy_.port())), End::kReset);
  send_all(old.client, "b");
  EXPECT_EQ(text(old.target, 1), "b");
  proxy_.accept_connections();
  const Link next = connect();
  send_all(next.client, "c");
  EXPECT_EQ(text(next.target, 1), "c");
}

TEST_F(FaultProxyTest, ATargetThatIsAwayIsAResetAndMayComeBackElsewhere) {
  Target elsewhere;
  int closed_port = 0;
  {
    closed_port = Target().port();
  }
  proxy_.set_target_port(closed_port);
  EXPECT_EQ(end_of(dial(proxy_.port())), End::kReset);
  proxy_.set_target_port(elsewhere.port());
  const Descriptor client = dial(proxy_.port());
  const Descriptor target = elsewhere.accept();
  send_all(client, "x");
  EXPECT_EQ(text(target, 1), "x");
}

TEST_F(FaultProxyTest, WaitingGivesUpInTimeAndLaterAnswersAreRight) {
  const auto never = [](const Traffic& now) { return now.open == 77; };
  EXPECT_FALSE(proxy_.wait_for(never, milliseconds(30)));
  const Link link = connect();
  send_all(link.client, "abc");
  EXPECT_TRUE(wait_for_in(Direction::kToTarget, 3));
  EXPECT_EQ(proxy_.traffic().connections, 1);
}

TEST(FaultProxy, LeavesNeitherProcessNorConnectionsBehind) {
  const Target target;
  Descriptor client;
  Descriptor accepted;
  pid_t pid = -1;
  {
    FaultProxy proxy({.target_port = target.port()});
    pid = proxy.pid();
    client = dial(proxy.port());
    accepted = target.accept();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_NE(end_of(client), End::kNone);
  EXPECT_NE(end_of(accepted), End::kNone);
}

std::string frame_with(const std::string& payload) {
  std::string header = "SHRD" + std::string(20, '\0');
  header[12] = static_cast<char>(payload.size());
  return header + payload;
}

TEST(FaultProxyFrames, ComeAgainBehindSoManyOthersButForTheGreeting) {
  const Target target;
  FaultProxy proxy({.target_port = target.port()});
  proxy.set(Direction::kToTarget, {.frames_again_after = 2});
  const Descriptor client = dial(proxy.port());
  const Descriptor accepted = target.accept();
  std::string sent;
  for (const char* payload : {"greeting", "a", "bb", "", "dddd"}) {
    sent += frame_with(payload);
  }
  // However the bytes are cut.
  send_all(client, sent.substr(0, 30));
  EXPECT_TRUE(proxy.wait_for(
      [](const Traffic& traffic) { return traffic.bytes_in[0] == 30; }));
  send_all(client, sent.substr(30));
  const auto expected = frame_with("greeting") + frame_with("a") +
      frame_with("bb") + frame_with("") + frame_with("a") + frame_with("dddd") +
      frame_with("bb");
  EXPECT_EQ(text(accepted, expected.size()), expected);
}

TEST(FaultProxyLoss, OfSegmentsIsMadeGoodByTheKernel) {
  if (!can_lose_segments()) {
    GTEST_SKIP() << "sockets cannot be made to lose what comes to them";
  }
  const Target target;
  FaultProxy proxy(
      {.target_port = target.port(), .segments_lost_per_mille = 100});
  const Descriptor client = dial(proxy.port());
  const Descriptor accepted = target.accept();
  constexpr std::int64_t kBytes = 8 * kMiB;
  const std::string all = noise(kBytes);
  std::thread sender([&] { send_all(client, all); });
  EXPECT_EQ(text(accepted, all.size()), all);
  sender.join();
  tcp_info info = {};
  socklen_t bytes = sizeof info;
  EXPECT_EQ(
      ::getsockopt(client.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes), 0);
  EXPECT_GT(info.tcpi_total_retrans, 0U);
}

TEST(FaultProxy, OneThatIsGoneIsSaidToBe) {
  FaultProxy proxy({.target_port = 1});
  ::kill(proxy.pid(), SIGKILL);
  EXPECT_THROW(
      {
        while (true) {
          proxy.traffic();
        }
      },
      Error);
}

}  // namespace
}  // namespace sherd::test
