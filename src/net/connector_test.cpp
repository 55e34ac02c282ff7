// SPDX-License-Identifier: Apache-2.0
#include "net/connector.h"

#include <optional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "net/net_testing.h"
#include "support/error_of.h"

namespace sherd::net {
namespace {

using namespace std::chrono_literals;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_for;
using testing::run_until;
using testing::TestEndpoint;
using testing::TestServer;

TEST(Connector, ConnectsByName) {
  Loop loop;
  TestServer server(loop);
  TestEndpoint client;
  const HostAddress named{"localhost", server.listener->address().port};
  EXPECT_EQ(testing::dial(loop, named, client), "");
}

TEST(Connector, SaysWhomItCannotReach) {
  Loop loop;
  TestEndpoint client;
  const testing::UnusedPort unused;
  const HostAddress nobody = unused.address();
  EXPECT_THAT(
      testing::dial(loop, nobody, client),
      AllOf(
          HasSubstr("cannot connect to " + nobody.text()),
          HasSubstr("refused")));
  EXPECT_THAT(
      // A name with an empty label is not looked up at a name server.
      testing::dial(loop, {"no..such-host.invalid", 1}, client),
      HasSubstr("cannot find the address of no..such-host.invalid"));
}

TEST(Connector, EndsAtItsDeadlineWhenTheHostIsSilent) {
  for (const Security& security :
       {Security(), shared_secret("0123456789abcdef")}) {
    Loop loop;
    TestEndpoint client;
    const testing::SilentHost host;
    const Instant begin = loop.now();
    EXPECT_THAT(
        testing::dial(
            loop, host.address(), client,
            {.security = security, .timeout = 100ms}),
        HasSubstr("found none"));
    EXPECT_GE(loop.now() - begin, 100ms);
    EXPECT_LT(loop.now() - begin, 5s);
  }
}

TEST(Connector, TriesTheNextAddressWhenOneIsSilent) {
  Loop loop;
  TestServer server(loop);
  const HostAddress named{"two-addresses", server.listener->address().port};
  const testing::UnansweringHost silent(named.port);
  TestEndpoint client;
  const Instant begin = loop.now();
  EXPECT_EQ(
      testing::dial(
          loop, named, client,
          {.timeout = 4s, .addresses = {silent.ip(), "127.0.0.1"}}),
      "");
  // Half of the time was for the first of them.
  EXPECT_GE(loop.now() - begin, 2s);
}

TEST(Connector, RefusesAnAddressBeyondThisHostWithoutSecurity) {
  Loop loop;
  EXPECT_THAT(
      error_of([&] {
        const Connector dial(loop, {"192.0.2.1", 80}, {}, [](auto) { FAIL(); });
      }),
      AllOf(HasSubstr("192.0.2.1"), HasSubstr("shared secret")));
}

TEST(Connector, HearsNothingOnceItIsDestroyed) {
  Loop loop;
  TestServer server(loop);
  const testing::SilentHost silent;
  const auto never = [](auto) { FAIL(); };
  auto first = std::make_optional<Connector>(
      loop, server.listener->address(), ConnectorOptions(), never);
  auto second = std::make_optional<Connector>(
      loop, silent.address(), ConnectorOptions(), never);
  first.reset();
  run_for(loop, 20ms);
  second.reset();  // Destroyed during its greeting.
  run_for(loop, 20ms);
}

// A ReconnectingClient and the calls of its handlers.
struct Kept {
  Kept(
      Loop& loop,
      const HostAddress& address,
      const ReconnectingClientOptions& options)
      : redial(
            loop,
            address,
            options,
            [this] { return ++randoms * 7919; },
            {.on_connected = [this] { ++connected; },
             .on_frame =
                 [this](Frame frame) { frames.push_back(std::move(frame)); },
             .on_lost =
                 [this](const Status& reason) {
                   lost.push_back(reason.message());
                 },
             .on_failed =
                 [this](const Status& reason) {
                   failed.push_back(reason.message());
                 }}) {}
  std::uint64_t randoms = 0;
  int connected = 0;
  std::vector<Frame> frames;
  std::vector<std::string> lost;
  std::vector<std::string> failed;
  ReconnectingClient redial;
};

ReconnectingClientOptions quick() {
  return {.backoff = {.first = 5ms, .longest = 40ms}};
}

TEST(ReconnectingClient, ComesBackWhenTheListenerDoes) {
  Loop loop;
  std::optional<TestServer> server(std::in_place, loop);
  const HostAddress address = server->listener->address();
  // There are three waits per life of the server. If a connection did not reset them, the last ones
  // would take minutes.
  Kept kept(
      loop, address, {.dial = {}, .backoff = {.first = 5ms, .longest = 1h}});
  for (int life = 1; life <= 6; ++life) {
    ASSERT_TRUE(run_until(
        loop, [&] { return kept.connected == life && !server->ends.empty(); }));
    ASSERT_NE(kept.redial.connection(), nullptr);
    kept.redial.connection()->send(1, "to it");
    server->ends[0]->connection->send(2, "from it");
    ASSERT_TRUE(run_until(loop, [&] {
      return static_cast<int>(kept.frames.size()) == life &&
          !server->ends[0]->frames.empty();
    }));
    server.reset();
    const std::size_t failed = kept.failed.size();
    ASSERT_TRUE(
        run_until(loop, [&] { return kept.failed.size() > failed + 1; }));
    EXPECT_EQ(static_cast<int>(kept.lost.size()), life);
    EXPECT_EQ(kept.redial.connection(), nullptr);
    server.emplace(loop, ListenerOptions(), address);
  }
}

TEST(ReconnectingClient, DialsAgainAfterItsOwnClose) {
  Loop loop;
  const TestServer server(loop);
  Kept kept(loop, server.listener->address(), quick());
  ASSERT_TRUE(run_until(loop, [&] { return kept.connected == 1; }));
  kept.redial.connection()->close({ErrorCode::kAborted, "silent for 1 s"});
  ASSERT_TRUE(run_until(loop, [&] { return kept.connected == 2; }));
  EXPECT_THAT(kept.lost, ElementsAre("silent for 1 s"));
  EXPECT_TRUE(kept.failed.empty());
}

TEST(ReconnectingClient, WaitsLongerAfterEachFailure) {
  Loop loop;
  const testing::UnusedPort unused;
  const Kept kept(
      loop, unused.address(),
      {.dial = {}, .backoff = {.first = 10ms, .longest = 1s}});
  // At least 0, 5, 15 and 35 ms after the first one.
  const Instant begin = loop.now();
  ASSERT_TRUE(run_until(loop, [&] { return kept.failed.size() == 4; }));
  EXPECT_GE(loop.now() - begin, 35ms);
  EXPECT_EQ(kept.randoms, 4U);
}

TEST(ReconnectingClient, MayBeDestroyedInItsHandlers) {
  Loop loop;
  TestServer server(loop);
  std::unique_ptr<ReconnectingClient> redial;
  int told = 0;
  const auto end = [&] {
    ++told;
    redial.reset();
  };
  const auto make = [&](bool at_once) {
    redial = std::make_unique<ReconnectingClient>(
        loop, server.listener->address(), quick(), [] { return 0; },
        ReconnectingClientHandlers{
            .on_connected =
                [&, at_once] {
                  if (at_once) {
                    end();
                  }
                },
            .on_frame = [&](const Frame&) { end(); },
            .on_lost = [&](const Status&) { end(); },
            .on_failed = [&](const Status&) { end(); }});
  };
  make(true);
  ASSERT_TRUE(run_until(loop, [&] { return told == 1; }));
  ASSERT_TRUE(run_until(loop, [&] { return server.ends.size() == 1; }));
  make(false);
  ASSERT_TRUE(run_until(loop, [&] { return server.ends.size() == 2; }));
  server.ends[1]->connection->send(1, "");
  ASSERT_TRUE(run_until(loop, [&] { return told == 2; }));
  make(false);
  ASSERT_TRUE(run_until(loop, [&] { return server.ends.size() == 3; }));
  server.ends[2]->connection->close({ErrorCode::kAborted, "enough"});
  ASSERT_TRUE(run_until(loop, [&] { return told == 3; }));
  run_for(loop, 50ms);
  EXPECT_EQ(told, 3);
}

}  // namespace
}  // namespace sherd::net
