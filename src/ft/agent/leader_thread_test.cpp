// SPDX-License-Identifier: Apache-2.0
#include "ft/agent/leader_thread.h"

#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <gtest/gtest.h>
#include "base/check.h"
#include "net/dial.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

constexpr Incarnation kIncarnation = 9;

// Rank 1, until it is told to stop or loses its leader.
class Guest {
 public:
  Guest(net::Loop& loop, std::uint16_t port)
      : dial_(
            loop,
            {"127.0.0.1", port},
            {},
            [this](Result<std::unique_ptr<net::Connection>> made) {
              connection_ = std::move(made).value();
              meet();
            }) {}

  std::future<std::string> end() { return end_.get_future(); }

 private:
  void meet() {
    connection_->start(
        {[this](const net::Frame& frame) { heard(frame); },
         [this](const Status& why) { ends("lost: " + why.message()); }});
    connection_->send(type_of(AgentFrame::kHello), str("1 ", kIncarnation));
  }
  void heard(const net::Frame& frame) {
    if (frame.type == type_of(AgentFrame::kHello)) {
      return;
    }
    const auto command = command_of(frame.payload).value();
    if (const auto* stop = std::get_if<StopCommand>(&command)) {
      ends("told: " + stop->reason);
    }
  }
  void ends(const std::string& why) {
    if (!std::exchange(has_ended_, true)) {
      end_.set_value(why);
    }
  }

  bool has_ended_ = false;
  std::promise<std::string> end_;
  std::unique_ptr<net::Connection> connection_;
  net::Dial dial_;
};

// The command to stop may have to wait for those before it while rank 0, which
// has it without a connection, is gone already. Round after round, because who is
// faster is not in the test's hands.
TEST(LeaderThread, WhoIsToldToStopHearsItWhenRank0GoesAtOnce) {
  for (int round = 0; round < 200; ++round) {
    LeaderThreadOptions options;
    options.leader.replica = {
        .incarnation = kIncarnation, .held = StateId{0, first_lineage(5, 1)}};
    options.leader.coordinator = {"127.0.0.1", 1};  // Nobody.
    options.host = "127.0.0.1";
    options.ranks = 2;
    std::promise<void> rank_0_stops;
    auto leader = std::make_optional<LeaderThread>(
        std::move(options), [&](const Command& command) {
          if (std::holds_alternative<StopCommand>(command)) {
            rank_0_stops.set_value();
          }
        });
    leader->start({{}, {}});
    leader->tell(FinishedEvent{});  // So there is nothing to do for rank 1.
    net::Loop loop;
    Guest rank_1(loop, leader->port());
    auto end = rank_1.end();
    std::jthread thread([&] { loop.run(); });
    rank_0_stops.get_future().wait();
    leader.reset();
    ASSERT_EQ(end.get(), "told: ") << "in round " << round;
    loop.stop();
  }
}

}  // namespace
}  // namespace sherd::ft
