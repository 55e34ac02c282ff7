// SPDX-License-Identifier: Apache-2.0
#include "net/listener.h"

#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "net/net_testing.h"
#include "support/error_of.h"

namespace sherd::net {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using ::testing::AllOf;
using testing::greeting;
using ::testing::HasSubstr;
using testing::RawClient;
using testing::run_for;
using testing::run_until;
using testing::TestEndpoint;
using testing::TestServer;

// Whatever happened before, the listener still accepts a proper client.
void expect_alive(Loop& loop, TestServer& server) {
  TestEndpoint client;
  const std::size_t before = server.ends.size();
  EXPECT_EQ(testing::dial(loop, server.listener->address(), client), "");
  EXPECT_TRUE(run_until(loop, [&] { return server.ends.size() > before; }));
}

TEST(Listener, TellsThePortThatItGot) {
  Loop loop;
  const TestServer server(loop);
  EXPECT_EQ(server.listener->address().host, "127.0.0.1");
  EXPECT_NE(server.listener->address().port, 0);
}

TEST(Listener, TakesNamesAndIpv6) {
  Loop loop;
  const TestServer named(loop, {}, {"localhost", 0});
  EXPECT_NE(named.listener->address().port, 0);
  const auto six = Listener::listen(
      loop, {"::1", 0}, {}, {.on_connection = [](auto) {}, .on_refused = {}});
  if (!six.ok()) {
    GTEST_SKIP() << "no IPv6 here: " << six.status().message();
  }
  EXPECT_EQ(six.value()->address().host, "::1");
}

TEST(Listener, RefusesAPortThatIsTaken) {
  Loop loop;
  const TestServer server(loop);
  const auto second = Listener::listen(
      loop, server.listener->address(), {},
      {.on_connection = [](auto) {}, .on_refused = {}});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      second.status().message(),
      AllOf(
          HasSubstr("cannot listen on 127.0.0.1:"),
          HasSubstr("already in use")));
}

TEST(Listener, RefusesAnAddressBeyondThisHostWithoutSecurity) {
  Loop loop;
  for (const char* host : {"0.0.0.0", "::", "192.0.2.1"}) {
    EXPECT_THAT(
        error_of([&] { const TestServer server(loop, {}, {host, 0}); }),
        AllOf(
            HasSubstr("expected a shared secret or certificates"),
            HasSubstr(host)));
  }
  const TestServer allowed(
      loop, {.security = shared_secret("0123456789abcdef")}, {"0.0.0.0", 0});
  EXPECT_NE(allowed.listener->address().port, 0);
}

TEST(Listener, ClosesAFrameWithAnyByteDamagedAndLivesOn) {
  Loop loop;
  TestServer server(loop);
  const std::string good = frame_bytes({.type = 5, .payload = "payload"});
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    const RawClient peer(server.listener->address().port);
    peer.send(greeting() + bytes);
    ASSERT_TRUE(run_until(loop, [&] {
      return server.ends.size() == at + 1 && server.ends[at]->is_closed();
    })) << at;
    EXPECT_TRUE(server.ends[at]->frames.empty()) << at;
    EXPECT_EQ(server.ends[at]->closed[0].code(), ErrorCode::kPeerMismatch);
  }
  expect_alive(loop, server);
}

TEST(Listener, ClosesStrangersWithAReasonAndLivesOn) {
  struct Case {
    std::string bytes;
    std::string reason;
  };
  std::string other_version = greeting();
  other_version[4] = 9;
  const std::vector<Case> cases = {
      {"GET / HTTP/1.1\r\n\r\n", "bytes that begin with 47"},
      {std::string("\x16\x03\x01\x00\xff\x01", 6), "TLS"},
      {other_version, "found version 9.0"},
      {frame_bytes({.type = kGreetingType, .payload = "accepted"}), "an echo"},
      {frame_bytes({.type = kGreetingType, .payload = ""}), "another one"},
      {frame_bytes({.type = 1, .payload = "?"}), "found a frame of type 1"}};
  Loop loop;
  TestServer server(loop);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const RawClient stranger(server.listener->address().port);
    stranger.send(cases[i].bytes);
    std::string heard;
    ASSERT_TRUE(run_until(loop, [&] { return stranger.ended(heard); }));
    ASSERT_TRUE(run_until(loop, [&] { return server.refused.size() > i; }));
    EXPECT_THAT(server.refused[i], HasSubstr(cases[i].reason));
    EXPECT_THAT(server.refused[i], HasSubstr("127.0.0.1:"));
  }
  EXPECT_EQ(server.refused.size(), cases.size());
  EXPECT_TRUE(server.ends.empty());
  expect_alive(loop, server);
}

TEST(Listener, LivesOnAfterRandomBytes) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  for (const Security& security :
       {Security(), shared_secret("0123456789abcdef")}) {
    Loop loop;
    TestServer server(loop, {.security = security});
    for (std::size_t i = 0; i < 50; ++i) {
      std::string bytes(1 + random() % 3000, '\0');
      for (char& byte : bytes) {
        byte = static_cast<char>(random() & 0xffU);
      }
      const bool after_greeting =
          security.kind == Security::Kind::kNone && i % 2 == 0;
      const RawClient stranger(server.listener->address().port);
      stranger.send((after_greeting ? greeting() : "") + bytes);
      stranger.end_writing();
      std::string heard;
      ASSERT_TRUE(run_until(loop, [&] { return stranger.ended(heard); }));
    }
    EXPECT_TRUE(run_until(loop, [&] {
      return server.refused.size() + server.ends.size() == 50;
    }));
    TestEndpoint client;
    EXPECT_EQ(
        testing::dial(
            loop, server.listener->address(), client, {.security = security}),
        "");
  }
}

TEST(Listener, DropsThoseThatSayNothing) {
  for (const Security& security :
       {Security(), shared_secret("0123456789abcdef")}) {
    Loop loop;
    TestServer server(loop, {.security = security, .greeting_timeout = 100ms});
    const RawClient silent(server.listener->address().port);
    const RawClient slow(server.listener->address().port);
    slow.send("S");
    const Instant begin = loop.now();
    std::string heard;
    ASSERT_TRUE(run_until(loop, [&] { return server.refused.size() == 2; }));
    EXPECT_GE(loop.now() - begin, 100ms);
    EXPECT_TRUE(run_until(loop, [&] { return silent.ended(heard); }));
    EXPECT_THAT(server.refused[0], HasSubstr("within 0.1 s, found none"));
  }
}

TEST(Listener, LetsNewOnesInWhenSilentOnesAreMany) {
  Loop loop;
  TestServer server(loop, {.greeting_timeout = 60s, .unfinished_max = 4});
  std::vector<std::unique_ptr<RawClient>> silent;
  silent.reserve(10);
  for (int i = 0; i < 10; ++i) {
    silent.push_back(
        std::make_unique<RawClient>(server.listener->address().port));
  }
  ASSERT_TRUE(run_until(loop, [&] { return server.refused.size() == 6; }));
  EXPECT_THAT(server.refused[0], HasSubstr("made way for others"));
  expect_alive(loop, server);
  EXPECT_EQ(server.refused.size(), 7U);
}

TEST(Listener, LeavesConnectionsAloneWhenItGoes) {
  Loop loop;
  TestServer server(loop);
  TestEndpoint client;
  const HostAddress address = server.listener->address();
  ASSERT_EQ(testing::dial(loop, address, client), "");
  ASSERT_TRUE(run_until(loop, [&] { return !server.ends.empty(); }));
  const RawClient unfinished(address.port);
  run_for(loop, 20ms);
  server.listener.reset();
  client.connection->send(1, "still there");
  EXPECT_TRUE(run_until(loop, [&] { return !server.ends[0]->frames.empty(); }));
  std::string heard;
  EXPECT_TRUE(run_until(loop, [&] { return unfinished.ended(heard); }));
  TestEndpoint late;
  EXPECT_THAT(
      testing::dial(loop, address, late), HasSubstr("Connection refused"));
}

}  // namespace
}  // namespace sherd::net
