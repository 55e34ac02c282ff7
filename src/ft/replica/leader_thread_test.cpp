// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/leader_thread.h"

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <gtest/gtest.h>
#include "base/check.h"
#include "net/connector.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

constexpr Incarnation kIncarnation = 9;

// Rank 1, until it is told to stop or loses its leader. With another hello it is somebody else.
class TestClient {
 public:
  TestClient(
      net::Loop& loop,
      std::uint16_t port,
      std::string hello = str("1 ", kIncarnation))
      : hello_(std::move(hello)),
        dial_(
            loop,
            {"127.0.0.1", port},
            {},
            [this](Result<net::ConnectionHandle> made) {
              connection_ = std::move(made).value();
              meet();
            }) {}

  std::future<std::string> end() { return end_.get_future(); }

 private:
  void meet() {
    connection_->start(
        {[this](const net::Frame& frame) { received(frame); },
         [this](const Status& why) { ends("lost: " + why.message()); }});
    if (!hello_.empty()) {
      connection_->send(type_of(RankFrame::kHello), hello_);
    }
  }
  void received(const net::Frame& frame) {
    if (frame.type == type_of(RankFrame::kHello)) {
      return;
    }
    const auto task = rank_task_of(frame.payload).value();
    if (const auto* stop = std::get_if<StopTask>(&task)) {
      ends("told: " + stop->reason);
    }
  }
  void ends(const std::string& why) {
    if (!std::exchange(has_ended_, true)) {
      end_.set_value(why);
    }
  }

  const std::string hello_;  // If empty, it sends nothing.
  bool has_ended_ = false;
  std::promise<std::string> end_;
  net::ConnectionHandle connection_;
  net::Connector dial_;
};

ReplicaAgentOptions options_of_two() {
  ReplicaAgentOptions options;
  options.rank.incarnation = kIncarnation;
  options.held = {0, first_lineage(5, 1)};
  options.coordinator = {"127.0.0.1", 1};  // Nobody listens there.
  options.ranks = 2;
  return options;
}

// The stop task may have to wait for earlier ones, while rank 0, which gets it without a
// connection, has already gone. Several rounds are run, because the test cannot control which is
// faster.
TEST(LeaderThread, WhoIsToldToStopHearsItWhenRank0GoesAtOnce) {
  for (int round = 0; round < 200; ++round) {
    std::promise<void> rank_0_stops;
    auto leader = std::make_optional<LeaderThread>(
        options_of_two(), [&](const RankTask& task) {
          if (std::holds_alternative<StopTask>(task)) {
            rank_0_stops.set_value();
          }
        });
    leader->start({{}, {}});
    leader->tell(FinishedEvent{});  // Rank 1 therefore has nothing to do.
    net::Loop loop;
    TestClient rank_1(loop, leader->port());
    auto end = rank_1.end();
    std::jthread thread([&] { loop.run(); });
    rank_0_stops.get_future().wait();
    leader.reset();
    ASSERT_EQ(end.get(), "told: ") << "in round " << round;
    loop.stop();
  }
}

TEST(LeaderThread, WhoDoesNotSayWhichRankItIsIsClosed) {
  auto options = options_of_two();
  options.hello_timeout = std::chrono::milliseconds(2500);
  LeaderThread leader(std::move(options), [](const RankTask&) {});
  leader.start({{}, {}});
  net::Loop loop;
  TestClient rank_1(loop, leader.port());
  TestClient silent(loop, leader.port(), "");
  auto end_of_rank_1 = rank_1.end();
  auto end = silent.end();
  std::jthread thread([&] { loop.run(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(6)), std::future_status::ready);
  EXPECT_EQ(
      end_of_rank_1.wait_for(std::chrono::milliseconds(300)),
      std::future_status::timeout)
      << "it had said so";
  loop.stop();
}

}  // namespace
}  // namespace sherd::ft
