// SPDX-License-Identifier: Apache-2.0
#include "net/connection.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "net/net_testing.h"
#include "support/error_of.h"

namespace sherd::net {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using testing::ConnectedPair;
using ::testing::HasSubstr;
using testing::run_for;
using testing::run_until;
using testing::TestEndpoint;
using testing::TestServer;

const Status kEnough{ErrorCode::kAborted, "enough"};

Security a_secret() { return shared_secret("0123456789abcdef"); }

TEST(Connection, CarriesManyFramesBothWaysInOrder) {
  for (const Security& security : {Security(), a_secret()}) {
    constexpr std::size_t kCount = 5000;
    Loop loop;
    ConnectedPair pair(loop, {}, security);
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::string payload(i % 300, static_cast<char>('a' + i % 26));
      pair.client.connection->send(static_cast<std::uint16_t>(i), payload);
      pair.accepted().connection->send(7, payload);
    }
    ASSERT_TRUE(run_until(loop, [&] {
      return pair.accepted().frames.size() == kCount &&
          pair.client.frames.size() == kCount;
    }));
    for (std::size_t i = 0; i < kCount; ++i) {
      const std::string payload(i % 300, static_cast<char>('a' + i % 26));
      ASSERT_EQ(pair.accepted().frames[i].type, i);
      ASSERT_EQ(pair.accepted().frames[i].payload, payload);
      ASSERT_EQ(pair.client.frames[i].payload, payload);
    }
    EXPECT_EQ(pair.client.connection->unsent_bytes(), 0U);
  }
}

TEST(Connection, CarriesALargeFrame) {
  for (const Security& security : {Security(), a_secret()}) {
    Loop loop;
    ConnectedPair pair(loop, {}, security);
    std::string payload(std::size_t{16} << 20U, '\0');
    for (std::size_t i = 0; i < payload.size(); ++i) {
      payload[i] = static_cast<char>(i * 7 + i / 1000);
    }
    pair.client.connection->send(3, payload);
    ASSERT_TRUE(
        run_until(loop, [&] { return !pair.accepted().frames.empty(); }));
    EXPECT_TRUE(pair.accepted().frames[0].payload == payload);
  }
}

TEST(Connection, RefusesToSendWhatThePeerWouldRefuse) {
  Loop loop;
  ConnectedPair pair(loop, {.payload_bytes_max = 100});
  Connection& connection = *pair.client.connection;
  EXPECT_EQ(
      error_of([&] { connection.send(1, std::string(101, 'x')); }),
      "[net] expected a payload of at most 100 bytes, found 101");
  EXPECT_THAT(
      error_of([&] { connection.send(kGreetingType, ""); }),
      HasSubstr("expected a type below 65535"));
  connection.send(1, std::string(100, 'x'));
  ASSERT_TRUE(run_until(loop, [&] { return !pair.accepted().frames.empty(); }));
  EXPECT_FALSE(pair.client.is_closed());
}

TEST(Connection, IsClosedByAFrameAboveTheLimit) {
  Loop loop;
  TestServer server(loop, {.connection = {.payload_bytes_max = 100}});
  TestEndpoint client;
  ASSERT_EQ(testing::dial(loop, server.listener->address(), client), "");
  client.connection->send(1, "fits");
  client.connection->send(1, std::string(101, 'x'));
  ASSERT_TRUE(run_until(loop, [&] { return client.is_closed(); }));
  ASSERT_TRUE(run_until(loop, [&] { return server.ends[0]->is_closed(); }));
  EXPECT_EQ(server.ends[0]->frames.size(), 1U);
  EXPECT_THAT(
      server.ends[0]->reason(), HasSubstr("at most 100 bytes, found 101"));
}

TEST(Connection, MayReceiveLessThanItSends) {
  Loop loop;
  TestServer server(
      loop,
      {.connection = {.payload_bytes_max = 1000, .received_bytes_max = 100}});
  const testing::RawClient peer(server.listener->address().port);
  peer.send(
      testing::greeting() +
      frame_bytes({.type = 1, .payload = std::string(100, 'x')}));
  ASSERT_TRUE(run_until(loop, [&] {
    return !server.ends.empty() && !server.ends[0]->frames.empty();
  }));
  server.ends[0]->connection->send(1, std::string(1000, 'x'));
  peer.send(frame_bytes({.type = 1, .payload = std::string(101, 'x')})
                .substr(0, kFrameHeaderBytes));
  ASSERT_TRUE(run_until(loop, [&] { return server.ends[0]->is_closed(); }));
  EXPECT_THAT(
      server.ends[0]->reason(), HasSubstr("at most 100 bytes, found 101"));
}

TEST(Connection, HasNoRoomForMoreThanAGreetingFirst) {
  Loop loop;
  TestServer server(loop);
  const testing::RawClient stranger(server.listener->address().port);
  stranger.send(
      frame_bytes({.type = kGreetingType, .payload = std::string(1000, 'x')})
          .substr(0, kFrameHeaderBytes));
  ASSERT_TRUE(run_until(loop, [&] { return !server.refused.empty(); }));
  EXPECT_THAT(server.refused[0], HasSubstr("at most 64 bytes, found 1000"));
}

TEST(Connection, TellsItsEndOnceWithTheFirstReason) {
  Loop loop;
  ConnectedPair pair(loop);
  Connection& connection = *pair.client.connection;
  connection.close(kEnough);
  connection.close({ErrorCode::kAborted, "more than enough"});
  EXPECT_FALSE(pair.client.is_closed()) << "told inside close()";
  EXPECT_FALSE(connection.open());
  connection.send(1, "into nothing");
  ASSERT_TRUE(run_until(loop, [&] {
    return pair.client.is_closed() && pair.accepted().is_closed();
  }));
  run_for(loop, 20ms);
  EXPECT_EQ(pair.client.closed.size(), 1U);
  EXPECT_EQ(pair.client.reason(), "enough");
  EXPECT_EQ(pair.accepted().closed.size(), 1U);
  EXPECT_THAT(pair.accepted().reason(), HasSubstr("the peer closed it"));
  EXPECT_TRUE(pair.accepted().frames.empty());
}

TEST(Connection, FinishesWithWhatWaits) {
  for (const Security& security : {Security(), a_secret()}) {
    Loop loop;
    ConnectedPair pair(loop, {.finish_timeout = 20s}, security);
    const std::string large(std::size_t{8} << 20U, 'x');
    pair.client.connection->send(1, large);
    pair.client.connection->send(2, "the last word");
    pair.client.connection->finish(kEnough);
    pair.client.connection->send(3, "too late");
    pair.accepted().connection->send(4, "not read any more");
    ASSERT_TRUE(run_until(loop, [&] {
      return pair.client.is_closed() && pair.accepted().is_closed();
    }));
    ASSERT_EQ(pair.accepted().frames.size(), 2U);
    EXPECT_EQ(pair.accepted().frames[1].payload, "the last word");
    EXPECT_EQ(pair.client.reason(), "enough");
    EXPECT_TRUE(pair.client.frames.empty());
  }
}

TEST(Connection, FinishesAlsoWhenItsOwnerHasGone) {
  Loop loop;
  ConnectedPair pair(loop, {.finish_timeout = 20s});
  const std::string large(std::size_t{8} << 20U, 'x');
  pair.client.connection->send(1, large);
  pair.client.connection->finish(kEnough);
  pair.client.connection.reset();
  ASSERT_TRUE(run_until(loop, [&] { return pair.accepted().is_closed(); }));
  EXPECT_EQ(pair.accepted().frames.size(), 1U);
  EXPECT_FALSE(pair.client.is_closed());
}

TEST(Connection, MayBeDestroyedInItsHandlers) {
  for (const bool by_frame : {true, false}) {
    Loop loop;
    TestServer server(loop);
    TestEndpoint unused;
    ConnectionHandle client;
    auto owned = std::make_shared<int>(0);  // Owned by the handlers.
    const Connector dial(
        loop, server.listener->address(), {},
        [&](Result<ConnectionHandle> result) {
          client = std::move(result).value();
          client->start(
              {.on_frame =
                   [&client, owned](const Frame&) {
                     ++*owned;
                     client.reset();
                   },
               .on_closed =
                   [&client, owned](const Status&) {
                     ++*owned;
                     client.reset();
                   }});
        });
    ASSERT_TRUE(run_until(
        loop, [&] { return client != nullptr && !server.ends.empty(); }));
    if (by_frame) {
      server.ends[0]->connection->send(1, "one");
      server.ends[0]->connection->send(2, "not heard any more");
    } else {
      server.ends[0]->connection->close(kEnough);
    }
    ASSERT_TRUE(run_until(loop, [&] { return owned.use_count() == 1; }));
    EXPECT_EQ(*owned, 1);
    EXPECT_EQ(client, nullptr);
  }
}

TEST(Connection, KeepsFramesAndItsEndUntilItIsStarted) {
  Loop loop;
  ConnectionHandle accepted;
  const auto listener = Listener::listen(
                            loop, {"127.0.0.1", 0}, {},
                            {.on_connection =
                                 [&](ConnectionHandle connection) {
                                   accepted = std::move(connection);
                                 },
                             .on_refused = {}})
                            .value();
  TestEndpoint client;
  ASSERT_EQ(testing::dial(loop, listener->address(), client), "");
  client.connection->send(1, "early");
  client.connection->finish(kEnough);
  ASSERT_TRUE(run_until(loop, [&] { return accepted != nullptr; }));
  run_for(loop, 20ms);
  TestEndpoint late;
  late.start(std::move(accepted));
  ASSERT_TRUE(run_until(loop, [&] { return late.is_closed(); }));
  ASSERT_EQ(late.frames.size(), 1U);
  EXPECT_EQ(late.frames[0].payload, "early");
}

TEST(Connection, EndsWhenThePeerEndsItsSide) {
  Loop loop;
  TestServer server(loop);
  const testing::RawClient peer(server.listener->address().port);
  std::string bytes = testing::greeting();
  append_frame(bytes, 1, "whole");
  append_frame(bytes, 2, "cut");
  peer.send(bytes.substr(0, bytes.size() - 1));
  peer.end_writing();
  ASSERT_TRUE(run_until(loop, [&] {
    return !server.ends.empty() && server.ends[0]->is_closed();
  }));
  EXPECT_EQ(server.ends[0]->frames.size(), 1U);
  EXPECT_THAT(
      server.ends[0]->reason(),
      HasSubstr("the peer closed it, in the midst of a frame"));
  EXPECT_EQ(server.ends[0]->closed[0].code(), ErrorCode::kPeerLost);
}

TEST(Connection, RefusesASecondGreeting) {
  Loop loop;
  TestServer server(loop);
  const testing::RawClient peer(server.listener->address().port);
  peer.send(testing::greeting() + testing::greeting());
  ASSERT_TRUE(run_until(loop, [&] {
    return !server.ends.empty() && server.ends[0]->is_closed();
  }));
  EXPECT_THAT(server.ends[0]->reason(), HasSubstr("found another"));
}

TEST(Connection, EndsWhenTooMuchWaitsForThePeer) {
  Loop loop;
  constexpr std::size_t kMax = std::size_t{1} << 20U;
  ConnectedPair pair(loop, {.send_queue_bytes_max = kMax});
  const std::string payload(kMax / 4, 'x');
  for (int i = 0; i < 3; ++i) {
    pair.client.connection->send(1, payload);
    EXPECT_TRUE(pair.client.connection->open()) << i;
  }
  // With their headers they exceed the limit.
  pair.client.connection->send(1, payload);
  EXPECT_FALSE(pair.client.connection->open());
  ASSERT_TRUE(run_until(loop, [&] { return pair.client.is_closed(); }));
  EXPECT_THAT(
      pair.client.reason(),
      HasSubstr("does not take what it is sent: expected at most 1048576"));
}

TEST(Connection, KnowsWhenItLastHeardAndOfWhom) {
  Loop loop;
  ConnectedPair pair(loop);
  EXPECT_EQ(
      pair.client.connection->peer(), pair.server.listener->address().text());
  const Instant before = loop.now();
  EXPECT_LE(pair.client.connection->last_received(), before);
  run_for(loop, 2ms);
  pair.accepted().connection->send(1, "");
  ASSERT_TRUE(run_until(loop, [&] { return !pair.client.frames.empty(); }));
  EXPECT_GT(pair.client.connection->last_received(), before);
  EXPECT_LE(pair.client.connection->last_received(), loop.now());
}

// A process that connects to the port, sends one thing and lives until it is killed.
class PeerProcess {
 public:
  PeerProcess(const HostAddress& address, const Security& security)
      : pid_(::fork()) {
    if (pid_ != 0) {
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    Loop loop;
    TestEndpoint end;
    testing::dial(loop, address, end, {.security = security});
    end.connection->send(1, "here");
    run_for(loop, 60s);
    ::_exit(0);
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() {
    signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  void signal(int number) const { ::kill(pid_, number); }

 private:
  const pid_t pid_;
};

TEST(KilledPeer, IsNoticedAtOnce) {
  for (const Security& security : {Security(), a_secret()}) {
    Loop loop;
    // No timeout notices it before the limit below.
    TestServer server(
        loop, {.security = security, .connection = {.user_timeout = 60s}});
    const PeerProcess peer(server.listener->address(), security);
    ASSERT_TRUE(run_until(loop, [&] {
      return !server.ends.empty() && !server.ends[0]->frames.empty();
    }));
    EXPECT_FALSE(server.ends[0]->is_closed());
    const Instant killed = loop.now();
    peer.signal(SIGKILL);
    ASSERT_TRUE(run_until(loop, [&] { return server.ends[0]->is_closed(); }));
    EXPECT_LT(loop.now() - killed, 15s);
    EXPECT_EQ(server.ends[0]->closed[0].code(), ErrorCode::kPeerLost);
  }
}

TEST(StoppedPeer, IsNoticedByTheUserTimeoutWhenDataWaits) {
  Loop loop;
  TestServer server(loop, {.connection = {.user_timeout = 500ms}});
  const PeerProcess peer(server.listener->address(), {});
  ASSERT_TRUE(run_until(loop, [&] {
    return !server.ends.empty() && !server.ends[0]->frames.empty();
  }));
  const Instant stopped = loop.now();
  peer.signal(SIGSTOP);
  const std::string payload(std::size_t{15} << 20U, 'x');
  server.ends[0]->connection->send(1, payload);
  ASSERT_TRUE(run_until(loop, [&] { return server.ends[0]->is_closed(); }));
  EXPECT_LT(loop.now() - stopped, 10s);
  EXPECT_EQ(server.ends[0]->closed[0].code(), ErrorCode::kPeerLost);
  EXPECT_THAT(server.ends[0]->reason(), HasSubstr("timed out"));
}

}  // namespace
}  // namespace sherd::net
