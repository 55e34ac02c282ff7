// SPDX-License-Identifier: Apache-2.0
#include "ft/agent/replica_agent.h"

#include <charconv>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "net/listener.h"

namespace sherd::ft {
namespace {

std::uint16_t type_of(AgentFrame frame) {
  return static_cast<std::uint16_t>(frame);
}

// Of a rank, as text: "host reduce fetch control".
struct RankText {
  RankAddress address;
  std::uint16_t control_port = 0;
};

std::string text_of(const RankText& rank) {
  return str(
      rank.address.host, ' ', rank.address.reduce_port, ' ',
      rank.address.fetch_port, ' ', rank.control_port);
}

RankText rank_text_of(const std::string& text) {
  RankText rank;
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
        rank(loop, options.rank, [this](const AgentEvent& event) {
          tell(event);
        }) {
    if (leads() && options.ranks > 1) {
      listen();
    }
  }

  bool leads() const { return options.rank.shard_rank == 0; }

  // ---- rank 0: the others come to it ----

  void listen() {
    net::ListenOptions listening;
    listening.security = options.rank.security;
    net::ListenHandlers handlers;
    handlers.on_connection = [this](std::unique_ptr<net::Connection> one) {
      const auto number = ++connections;
      auto* connection = one.get();
      guests[number] = std::move(one);
      connection->start(
          {[this, number](const net::Frame& frame) {
             guest_says(number, frame);
           },
           [this, number](const Status& reason) {
             guest_ends(number, reason);
           }});
    };
    listener =
        net::Listener::listen(loop, {options.rank.host, 0}, listening, handlers)
            .value();
  }

  void guest_says(std::uint64_t number, const net::Frame& frame) {
    const auto known = rank_of.find(number);
    if (known == rank_of.end()) {
      greet(number, frame);
      return;
    }
    const auto event = event_of(frame.payload);
    if (frame.type != type_of(AgentFrame::kEvent) || !event.ok()) {
      guests.at(number)->close(
          Status(ErrorCode::kPeerMismatch, "[ft] expected an event"));
      return;
    }
    if (leader) {
      leader->heard(known->second, event.value());
    } else {
      early.emplace_back(known->second, event.value());
    }
  }

  // "rank incarnation".
  void greet(std::uint64_t number, const net::Frame& frame) {
    std::istringstream in(frame.payload);
    std::size_t rank_number = 0;
    Incarnation incarnation = 0;
    in >> rank_number >> incarnation;
    const bool expected = frame.type == type_of(AgentFrame::kHello) && in &&
        incarnation == options.rank.incarnation && rank_number > 0 &&
        rank_number < static_cast<std::size_t>(options.ranks) &&
        !siblings.contains(rank_number);
    if (!expected) {
      guests.at(number)->close(Status(
          ErrorCode::kPeerMismatch,
          "[ft] expected a rank of this replica, found a stranger"));
      return;
    }
    rank_of[number] = rank_number;
    siblings[rank_number] = guests.at(number).get();
    if (siblings.size() + 1 == static_cast<std::size_t>(options.ranks)) {
      lead();
    }
  }

  void guest_ends(std::uint64_t number, const Status& reason) {
    const auto known = rank_of.find(number);
    if (known != rank_of.end()) {
      const auto rank_number = known->second;
      siblings.erase(rank_number);
      rank_of.erase(known);
      lost(rank_number, reason.message());
    }
    guests.erase(number);
  }

  void lost(std::size_t rank_number, const std::string& reason) {
    if (leader) {
      leader->lost_rank(rank_number, reason);
    } else {
      rank.take(StopCommand{str("rank ", rank_number, " was lost: ", reason)});
    }
  }

  // All ranks are there.
  void lead() {
    LeaderOptions leading;
    leading.replica = {
        .replica = options.rank.replica,
        .incarnation = options.rank.incarnation,
        .config = options.config,
        .held = options.held};
    leading.coordinator = options.coordinator;
    leading.security = options.rank.security;
    leading.addresses = addresses;
    leader = std::make_unique<Leader>(
        loop, std::move(leading),
        [this](std::size_t to, const Command& command) { send(to, command); });
    rank.on_snapshot_wanted([this] { leader->snapshot_wanted(); });
    for (const auto& [from, event] : early) {
      leader->heard(from, event);
    }
    early.clear();
  }

  void send(std::size_t to, const Command& command) {
    if (to == 0) {
      // Later, as others hear it: what it answers finds the leader idle.
      loop.post([this, command] { rank.take(command); });
    } else if (const auto sibling = siblings.find(to);
               sibling != siblings.end()) {
      sibling->second->send(type_of(AgentFrame::kCommand), bytes_of(command));
    }
  }

  // ---- the others: they go to rank 0 ----

  void dial(const RankText& first) {
    net::DialOptions dialling;
    dialling.security = options.rank.security;
    dialled = std::make_unique<net::Dial>(
        loop, net::HostAddress{first.address.host, first.control_port},
        dialling, [this](Result<std::unique_ptr<net::Connection>> made) {
          if (!made.ok()) {
            lost_leader(made.status());
            return;
          }
          to_leader = std::move(made).value();
          to_leader->start(
              {[this](const net::Frame& frame) { leader_says(frame); },
               [this](const Status& reason) { lost_leader(reason); }});
          to_leader->send(
              type_of(AgentFrame::kHello),
              str(options.rank.shard_rank, ' ', options.rank.incarnation));
        });
  }

  void leader_says(const net::Frame& frame) {
    const auto command = command_of(frame.payload);
    if (frame.type != type_of(AgentFrame::kCommand) || !command.ok()) {
      to_leader->close(
          Status(ErrorCode::kPeerMismatch, "[ft] expected a command"));
      return;
    }
    rank.take(command.value());
  }

  void lost_leader(const Status& reason) {
    rank.take(StopCommand{
        str("rank 0 of this replica was lost: ", reason.message())});
  }

  // ---- both ----

  void tell(const AgentEvent& event) {
    if (leads()) {
      if (leader) {
        leader->heard(0, event);
      } else {
        early.emplace_back(0, event);
      }
    } else if (to_leader) {
      to_leader->send(type_of(AgentFrame::kEvent), bytes_of(event));
    }
  }

  void beat() {
    tell(ProgressEvent{rank.progress()});
    constexpr Duration kEvery = std::chrono::milliseconds(100);
    beats = loop.after(kEvery, [this] { beat(); });
  }

  void run() {
    try {
      loop.run();
    } catch (const std::exception& error) {
      log_error(str("[ft] the agent ended: ", error.what()));
      rank.take(StopCommand{error.what()});
    }
  }

  const ReplicaAgentOptions options;
  std::vector<RankAddress> addresses;
  net::Loop loop;
  RankAgent rank;
  std::unique_ptr<net::Listener> listener;
  std::uint64_t connections = 0;
  std::map<std::uint64_t, std::unique_ptr<net::Connection>> guests;
  std::map<std::uint64_t, std::size_t> rank_of;           // Of guests.
  std::map<std::size_t, net::Connection*> siblings;       // By rank.
  std::vector<std::pair<std::size_t, AgentEvent>> early;  // Before it leads.
  std::unique_ptr<Leader> leader;
  std::unique_ptr<net::Dial> dialled;
  std::unique_ptr<net::Connection> to_leader;
  net::Timer beats;
  std::jthread thread;
};

ReplicaAgent::ReplicaAgent(ReplicaAgentOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

ReplicaAgent::~ReplicaAgent() {
  impl_->loop.stop();
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

std::string ReplicaAgent::address() const {
  RankText mine{impl_->rank.address(), 0};
  if (impl_->listener) {
    mine.control_port = impl_->listener->address().port;
  }
  return text_of(mine);
}

void ReplicaAgent::start(const std::vector<std::string>& addresses) {
  SHERD_CHECK(
      addresses.size() == static_cast<std::size_t>(impl_->options.ranks),
      "[ft] expected the addresses of ", impl_->options.ranks, " ranks, found ",
      addresses.size());
  for (const auto& text : addresses) {
    impl_->addresses.push_back(rank_text_of(text).address);
  }
  if (!impl_->leads()) {
    impl_->dial(rank_text_of(addresses.front()));
  } else if (impl_->options.ranks == 1) {
    impl_->lead();
  }
  impl_->beat();
  impl_->thread = std::jthread([impl = impl_.get()] { impl->run(); });
}

std::optional<ComputeCommand> ReplicaAgent::next(const RankProgram& program) {
  return impl_->rank.next(program);
}

float* ReplicaAgent::gradients() { return impl_->rank.gradients(); }

bool ReplicaAgent::finish(
    const ComputeCommand& task, const RankProgram& program) {
  return impl_->rank.finish(task, program);
}

void ReplicaAgent::end(const RankProgram& program) { impl_->rank.end(program); }

void ReplicaAgent::leave() {
  impl_->loop.post([this] { impl_->tell(LeaveEvent{}); });
}

}  // namespace sherd::ft
