// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/requester_connection.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "ft/transfer/fetch.h"
#include "ft/transfer/transfer_messages.h"
#include "ft/transfer/transfer_server.h"
#include "ft/transfer/transfer_testing.h"

namespace sherd::ft {

using namespace transfer;  // NOLINT(google-build-using-namespace): under test.

namespace {

using namespace std::chrono_literals;
using net::testing::RawClient;
using net::testing::run_for;
using net::testing::run_until;
using testing::CapturedResult;
using ::testing::HasSubstr;
using testing::kMebi;
using testing::kRun;
using testing::random_bytes;
using testing::state_of;

// A client that fetches frame by frame.
struct TestRequester {
  explicit TestRequester(
      net::Loop& its_loop, const TransferServerOptions& options = {})
      : loop(its_loop), server(its_loop, options, [] {}) {
    server.set_run(kRun);
    offer(
        server, state_of(1),
        std::make_shared<const std::string>(64 * kMebi, 'x'));
  }
  void connect() {
    EXPECT_EQ(net::testing::dial(loop, {"127.0.0.1", server.port()}, end), "");
  }
  void say(TransferFrameType type, const std::string& payload) {
    say(static_cast<std::uint16_t>(type), payload);
  }
  void say(std::uint16_t type, const std::string& payload) {
    end.connection->send(type, payload);
  }
  void request_chunk(std::uint64_t place) {
    say(TransferFrameType::kChunkRequest, chunk_request(place));
  }
  // The reason of the refusal, when it arrives.
  std::string refusal() {
    const auto comes = [&] {
      return !end.frames.empty() &&
          end.frames.back().type ==
          static_cast<std::uint16_t>(TransferFrameType::kRefusal);
    };
    return run_until(loop, comes)
        ? refusal_of(end.frames.back().payload).value().reason
        : "none has come";
  }
  net::Loop& loop;
  TransferServer server;
  net::testing::TestEndpoint end;
};

const TransferRequest kFetchIt{
    RequestKind::kFetchSnapshot, kRun, 0, state_of(1), 1000};

TEST(StrangeVisitor, IsRefusedWithAReason) {
  struct Case {
    std::function<void(TestRequester&)> act;
    std::string reason;
  };
  const std::vector<Case> cases = {
      {[](TestRequester& it) { it.request_chunk(0); },
       "expected a request first"},
      {[](TestRequester& it) { it.say(std::uint16_t{99}, "what"); },
       "found a frame of type 99"},
      {[](TestRequester& it) { it.say(TransferFrameType::kRequest, "what"); },
       "expected"},
      {[](TestRequester& it) {
         std::string bytes = bytes_of(kFetchIt);
         bytes[0] = 3;
         it.say(TransferFrameType::kRequest, bytes);
       },
       "expected version 2, found 3"},
      {[](TestRequester& it) {
         auto request = kFetchIt;
         request.run = kRun - 1;
         it.say(TransferFrameType::kRequest, bytes_of(request));
       },
       "expected run 77, found a request of run 76"},
      {[](TestRequester& it) {
         auto request = kFetchIt;
         request.run = kRun + 1;
         it.say(TransferFrameType::kRequest, bytes_of(request));
       },
       "expected run 77, found a request of run 78"},
      {[](TestRequester& it) {
         it.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
         it.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
       },
       "expected wishes for chunks after an answer"},
      {[](TestRequester& it) {
         it.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
         it.request_chunk(1);
       },
       "expected the place of a chunk"},
      {[](TestRequester& it) {
         it.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
         it.request_chunk(64 * kMebi);
       },
       "expected the place of a chunk"},
  };
  net::Loop loop;
  for (const auto& one : cases) {
    SCOPED_TRACE(one.reason);
    TestRequester visitor(loop);
    visitor.connect();
    one.act(visitor);
    EXPECT_THAT(visitor.refusal(), HasSubstr(one.reason));
    EXPECT_TRUE(run_until(loop, [&] { return !visitor.server.busy(); }));
  }
}

TEST(StrangeVisitor, WhoSpeaksNoFramesDisturbsNobody) {
  net::Loop loop;
  TestRequester visitor(loop);
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const RawClient stranger(visitor.server.port());
    stranger.send(
        (i % 2 == 0 ? "" : net::testing::greeting()) +
        *random_bytes(300, seed + i));
    std::string heard;
    EXPECT_TRUE(run_until(loop, [&] { return stranger.ended(heard); }));
  }
  visitor.connect();
  visitor.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
  EXPECT_TRUE(run_until(loop, [&] { return !visitor.end.frames.empty(); }));
  EXPECT_TRUE(visitor.server.busy());
}

TEST(StrangeVisitor, WhoDoesNotReadFillsNoMemory) {
  net::Loop loop;
  TestRequester visitor(loop);
  const RawClient stranger(visitor.server.port());
  stranger.send(net::testing::greeting());
  stranger.send(net::frame_bytes(
      {.type = static_cast<std::uint16_t>(TransferFrameType::kRequest),
       .payload = bytes_of(kFetchIt)}));
  std::uint64_t place = 0;
  for (int i = 0; i < 60; ++i) {
    stranger.send(net::frame_bytes(
        {.type = static_cast<std::uint16_t>(TransferFrameType::kChunkRequest),
         .payload = chunk_request(place)}));
    place += kMebi;
    run_for(loop, 2ms);
  }
  EXPECT_GT(visitor.server.bytes_sent(), kMebi);
  // Sockets buffer a few megabytes, and at most three chunks wait.
  EXPECT_LT(visitor.server.bytes_sent(), 24 * kMebi);
}

TEST(StrangeVisitor, WhoSaysNothingIsGivenUp) {
  net::Loop loop;
  TestRequester visitor(loop, {.silence_max = 300ms});
  visitor.connect();
  EXPECT_THAT(visitor.refusal(), HasSubstr("found silence"));
  visitor.end.frames.clear();
  visitor.connect();
  visitor.say(TransferFrameType::kRequest, bytes_of(kFetchIt));
  EXPECT_THAT(visitor.refusal(), HasSubstr("found silence"));
  EXPECT_FALSE(visitor.server.busy());
}

TEST(StrangeVisitor, TooManyAreTurnedAway) {
  net::Loop loop;
  TestRequester visitor(loop);
  std::vector<CapturedResult<std::string>> heard(70);
  std::vector<std::unique_ptr<Fetch>> fetches;
  fetches.reserve(heard.size());
  for (auto& one : heard) {  // Those that wait.
    fetches.push_back(fetch_snapshot(
        loop, {{"127.0.0.1", visitor.server.port()}}, {.run = kRun},
        state_of(2), one.done()));
  }
  const auto count = [&] {
    return std::count_if(heard.begin(), heard.end(), [](const auto& one) {
      return one.code() == ErrorCode::kUnavailable;
    });
  };
  EXPECT_TRUE(run_until(loop, [&] { return count() == 6; }));
  run_for(loop, 50ms);
  EXPECT_EQ(count(), 6);
}

}  // namespace
}  // namespace sherd::ft
