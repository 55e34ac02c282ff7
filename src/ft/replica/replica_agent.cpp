// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/replica_agent.h"

#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "ft/replica/leader_thread.h"
#include "net/authentication.h"
#include "net/connector.h"

namespace sherd::ft {
namespace {

// The address of a rank; as text: "host reduce_port fetch_port control_port".
struct RankEndpoints {
  RankAddress address;
  std::uint16_t control_port = 0;
};

RankEndpoints rank_text_of(const std::string& text) {
  RankEndpoints rank;
  std::istringstream in(text);
  in >> rank.address.host >> rank.address.reduce_port >>
      rank.address.fetch_port >> rank.control_port;
  SHERD_CHECK(
      !in.fail(), "[ft] expected the address of a rank, found \"", text, "\"");
  return rank;
}

}  // namespace

struct ReplicaAgent::Impl {
  explicit Impl(ReplicaAgentOptions given)
      : options(std::move(given)),
        rank(
            loop,
            options.rank,
            [this](const RankEvent& event) { tell(event); },
            [this] {
              if (leader) {
                leader->snapshot_wanted();
              }
            }) {
    if (options.rank.shard_rank == 0) {
      leader =
          std::make_unique<LeaderThread>(options, [this](const RankTask& task) {
            loop.post([this, task] { rank.take(task); });
          });
    }
  }
  // Stops the loop first, so that no callback reaches a half-destroyed agent.
  ~Impl() {
    loop.stop();
    if (thread.joinable()) {
      thread.join();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  // ---- the other ranks, which connect to rank 0 ----

  // All siblings connect at the same moment, and a listener has limited room: those that find none
  // try again, not all at once.
  void dial(const net::HostAddress& first) {
    net::ReconnectingClientOptions dialling;
    dialling.dial.security = options.rank.security;
    dialling.dial.connection.user_timeout = options.rank.timeouts.link;
    dialling.backoff.first = std::chrono::milliseconds(100);
    to_leader = std::make_unique<net::ReconnectingClient>(
        loop, first, dialling, net::random_number,
        net::ReconnectingClientHandlers{
            .on_connected = [this] { greet_leader(); },
            .on_frame = [this](const net::Frame& frame) { leader_says(frame); },
            .on_lost =
                [this](const Status& reason) {
                  // If rank 0 has not answered yet, it had no room for the connection: it greets
                  // before it knows whether it will keep the connection.
                  not_connected(reason, !deadline.pending());
                },
            .on_failed =
                [this](const Status& reason) {
                  // Rank 0 listens as long as it lives.
                  not_connected(
                      reason, reason.code() == ErrorCode::kUnavailable);
                }});
    deadline = loop.after(options.rank.timeouts.siblings, [this] {
      lost_leader(Status(
          ErrorCode::kDeadlineExceeded,
          str("it has not answered within ",
              seconds(options.rank.timeouts.siblings), " s",
              dial_problem.empty() ? "" : ": ", dial_problem)));
    });
  }

  void not_connected(const Status& reason, bool for_good) {
    dial_problem = reason.message();
    if (for_good) {
      lost_leader(reason);
    }
  }

  void greet_leader() {
    to_leader->connection()->send(
        type_of(RankFrame::kHello),
        str(options.rank.shard_rank, ' ', options.rank.incarnation));
    if (leaving) {
      tell(LeaveEvent{});
    }
  }

  void leader_says(const net::Frame& frame) {
    if (frame.type == type_of(RankFrame::kHello)) {
      deadline.cancel();
      return;
    }
    const auto task = rank_task_of(frame.payload);
    if (frame.type != type_of(RankFrame::kTask) || !task.ok()) {
      to_leader->connection()->close(
          Status(ErrorCode::kPeerMismatch, "[ft] expected a command"));
      return;
    }
    rank.take(task.value());
  }

  void lost_leader(const Status& reason) {
    deadline.cancel();
    to_leader.reset();
    rank.take(
        StopTask{str("rank 0 of this replica was lost: ", reason.message())});
  }

  // ---- both ----

  void tell(const RankEvent& event) {
    if (leader) {
      leader->tell(event);
    } else if (to_leader && to_leader->connection() != nullptr) {
      to_leader->connection()->send(
          type_of(RankFrame::kEvent), bytes_of(event));
    }
  }

  void leave() {
    leaving = true;  // For a leader that is not connected yet.
    tell(LeaveEvent{});
  }

  void send_heartbeat() {
    tell(rank.progress());
    auto speeds = rank.link_speeds();
    if (speeds != told_speeds) {
      tell(speeds);
      told_speeds = std::move(speeds);
    }
    beats = loop.after(
        rank_heartbeat_interval(options.ranks), [this] { send_heartbeat(); });
  }

  void run() {
    try {
      loop.run();
    } catch (const std::exception& error) {
      log_error(str("[ft] the agent ended: ", error.what()));
      rank.take(StopTask{error.what()});
    }
  }

  const ReplicaAgentOptions options;
  net::Loop loop;
  RankAgent rank;
  std::unique_ptr<net::ReconnectingClient> to_leader;
  net::Timer deadline;  // For rank 0's answer.
  std::string dial_problem;
  net::Timer beats;
  bool leaving = false;
  LinkSpeeds told_speeds;
  // Only in rank 0; ends before the rest.
  std::unique_ptr<LeaderThread> leader;
  std::jthread thread;
};

ReplicaAgent::ReplicaAgent(ReplicaAgentOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

ReplicaAgent::~ReplicaAgent() = default;

std::string ReplicaAgent::address() const {
  const auto mine = impl_->rank.address();
  return str(
      mine.host, ' ', mine.reduce_port, ' ', mine.fetch_port, ' ',
      impl_->leader ? impl_->leader->port() : 0);
}

void ReplicaAgent::start(const std::vector<std::string>& addresses) {
  SHERD_CHECK(
      addresses.size() == static_cast<std::size_t>(impl_->options.ranks),
      "[ft] expected the addresses of ", impl_->options.ranks, " ranks, found ",
      addresses.size());
  std::vector<RankAddress> all;
  for (const auto& text : addresses) {
    all.push_back(rank_text_of(text).address);
  }
  if (impl_->leader) {
    impl_->leader->start(std::move(all));
  } else {
    const RankEndpoints first = rank_text_of(addresses.front());
    impl_->dial({first.address.host, first.control_port});
  }
  impl_->send_heartbeat();
  impl_->thread = std::jthread([impl = impl_.get()] { impl->run(); });
}

RankAgent& ReplicaAgent::rank() { return impl_->rank; }

void ReplicaAgent::leave() {
  impl_->loop.post([this] { impl_->leave(); });
}

}  // namespace sherd::ft
