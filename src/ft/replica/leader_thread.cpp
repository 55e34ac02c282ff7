// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/leader_thread.h"

#include <pthread.h>
#include <exception>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "ft/replica/leader.h"
#include "net/authentication.h"
#include "net/listener.h"
#include "net/loop.h"

namespace sherd::ft {
namespace {

// Events are short.
constexpr std::size_t kEventBytesMax = std::size_t{1} << 20U;
// Connections that have not yet said which rank they are.
constexpr std::size_t kGuestsMax = 64;

}  // namespace

struct LeaderThread::Impl {
  struct IncomingRank {
    net::ConnectionHandle connection;
    net::Timer deadline;              // For its hello.
    std::optional<std::size_t> rank;  // Once it has said which it is.
  };

  Impl(ReplicaAgentOptions given, std::function<void(const RankTask&)> takes)
      : options(std::move(given)), own(std::move(takes)) {
    if (options.ranks > 1) {
      listen();
    }
  }

  void listen() {
    net::ListenerOptions listening;
    listening.security = options.rank.security;
    listening.connection.received_bytes_max = kEventBytesMax;
    listening.connection.user_timeout = options.rank.timeouts.link;
    // All ranks connect at the same moment.
    listening.unfinished_max = room();
    net::ListenerHandlers handlers;
    handlers.on_connection = [this](net::ConnectionHandle one) {
      if (incoming.size() >= room()) {
        return;  // Destroying it closes it.
      }
      const auto number = ++connections;
      auto* connection = one.get();
      auto& guest = incoming[number];
      guest.connection = std::move(one);
      guest.deadline = loop.after(options.hello_timeout, [connection] {
        connection->close(
            {ErrorCode::kDeadlineExceeded,
             "[ft] expected to hear which rank it is, found silence"});
      });
      connection->start(
          {[this, number](const net::Frame& frame) { on_frame(number, frame); },
           [this, number](const Status& reason) {
             on_closed(number, reason);
           }});
    };
    listener =
        net::Listener::listen(loop, {options.rank.host, 0}, listening, handlers)
            .value();
  }

  std::size_t room() const {
    return static_cast<std::size_t>(options.ranks) + kGuestsMax;
  }

  void on_frame(std::uint64_t number, const net::Frame& frame) {
    auto& guest = incoming.at(number);
    if (!guest.rank) {
      identify(guest, frame);
      return;
    }
    const auto event = event_of(frame.payload);
    if (frame.type != type_of(RankFrame::kEvent) || !event.ok()) {
      guest.connection->close(
          Status(ErrorCode::kPeerMismatch, "[ft] expected an event"));
      return;
    }
    received(*guest.rank, event.value());
  }

  // The payload is "rank incarnation".
  void identify(IncomingRank& guest, const net::Frame& frame) {
    std::istringstream in(frame.payload);
    std::size_t rank_number = 0;
    Incarnation incarnation = 0;
    in >> rank_number >> incarnation;
    const bool expected = frame.type == type_of(RankFrame::kHello) && in &&
        incarnation == options.rank.incarnation && rank_number > 0 &&
        rank_number < static_cast<std::size_t>(options.ranks) &&
        !siblings.contains(rank_number);
    if (!expected) {
      guest.connection->close(Status(
          ErrorCode::kPeerMismatch,
          "[ft] expected a rank of this replica, found a stranger"));
      return;
    }
    guest.deadline.cancel();
    guest.rank = rank_number;
    siblings[rank_number] = guest.connection.get();
    if (started && all_are_there()) {
      lead();
    }
  }

  bool all_are_there() const {
    return siblings.size() + 1 == static_cast<std::size_t>(options.ranks);
  }

  void on_closed(std::uint64_t number, const Status& reason) {
    const auto rank = incoming.at(number).rank;
    if (rank && siblings.erase(*rank) > 0) {
      lost(*rank, reason.message());
    }
    incoming.erase(number);
    end_if_nobody_is_left();
  }

  void lost(std::size_t rank_number, const std::string& reason) {
    if (leader) {
      leader->lost_rank(rank_number, reason);
    } else {
      own(StopTask{str("rank ", rank_number, " was lost: ", reason)});
    }
  }

  void start() {
    started = true;
    if (all_are_there()) {
      lead();
      return;
    }
    deadline =
        loop.after(options.rank.timeouts.siblings, [this] { give_up(); });
  }

  // The ranks notice the end of their connections.
  void forget_siblings() {
    siblings.clear();
    incoming.clear();
  }

  void give_up() {
    std::string missing;
    for (std::size_t i = 1; i < static_cast<std::size_t>(options.ranks); ++i) {
      if (!siblings.contains(i)) {
        missing += str(missing.empty() ? "" : ", ", i);
      }
    }
    const std::string why =
        str("expected all ", options.ranks, " ranks of this replica within ",
            seconds(options.rank.timeouts.siblings), " s, found none of rank ",
            missing);
    started = false;  // Ranks that connect later are not led.
    listener.reset();
    forget_siblings();
    own(StopTask{why});
  }

  // All ranks are there.
  void lead() {
    deadline.cancel();
    for (const auto& [to, sibling] : siblings) {
      sibling->send(type_of(RankFrame::kHello), "0");
    }
    leader = std::make_unique<Leader>(
        loop, options, addresses,
        [this](std::size_t to, const RankTask& task) { send(to, task); });
    for (const auto& [from, event] : std::exchange(early, {})) {
      leader->received(from, event);
    }
  }

  void received(std::size_t from, const RankEvent& event) {
    if (leader) {
      leader->received(from, event);
    } else {
      early.emplace_back(from, event);
    }
  }

  void send(std::size_t to, const RankTask& task) {
    if (to == 0) {
      own(task);
    } else if (const auto sibling = siblings.find(to);
               sibling != siblings.end()) {
      sibling->second->send(type_of(RankFrame::kTask), bytes_of(task));
      // The connection is closed only once the rank has read the task: unread bytes would make the
      // close a reset, which drops the task.
      if (std::holds_alternative<StopTask>(task)) {
        sibling->second->finish(
            Status(ErrorCode::kAborted, "[ft] it was told to stop"));
      }
    }
  }

  // Ranks that were told to stop receive that before this thread ends.
  void end() {
    ending = true;
    listener.reset();
    siblings.clear();
    std::erase_if(incoming, [](const auto& one) {
      return one.second.connection->open();
    });
    end_if_nobody_is_left();
  }

  void end_if_nobody_is_left() {
    if (ending && incoming.empty()) {
      loop.stop();
    }
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "sherd-leader");
    try {
      loop.run();
    } catch (const std::exception& error) {
      log_error(str("[ft] the leader ended: ", error.what()));
      forget_siblings();
      own(StopTask{error.what()});
    }
  }

  const ReplicaAgentOptions options;
  RankAddresses addresses;  // Of all ranks, once it is started.
  const std::function<void(const RankTask&)> own;
  net::Loop loop;
  std::unique_ptr<net::Listener> listener;
  bool started = false;
  bool ending = false;
  std::uint64_t connections = 0;
  std::map<std::uint64_t, IncomingRank> incoming;
  std::map<std::size_t, net::Connection*> siblings;  // Keyed by rank.
  // Events before it leads.
  std::vector<std::pair<std::size_t, RankEvent>> early;
  std::unique_ptr<Leader> leader;
  net::Timer deadline;
  std::jthread thread;
};

LeaderThread::LeaderThread(
    ReplicaAgentOptions options, std::function<void(const RankTask&)> own)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(own))) {}

LeaderThread::~LeaderThread() {
  impl_->loop.post([impl = impl_.get()] { impl->end(); });
  if (impl_->thread.joinable()) {
    impl_->thread.join();
  }
}

std::uint16_t LeaderThread::port() const {
  return impl_->listener ? impl_->listener->address().port : 0;
}

void LeaderThread::start(std::vector<RankAddress> addresses) {
  // Only the coordinator and this replica's ranks learn the key, over connections that they trust.
  const RingKey key{net::random_number(), net::random_number()};
  for (auto& address : addresses) {
    address.key = key;
  }
  impl_->addresses = std::move(addresses);
  impl_->start();
  impl_->thread = std::jthread([impl = impl_.get()] { impl->run(); });
}

void LeaderThread::tell(const RankEvent& event) {
  impl_->loop.post([impl = impl_.get(), event] { impl->received(0, event); });
}

void LeaderThread::snapshot_wanted() {
  impl_->loop.post([impl = impl_.get()] {
    if (impl->leader) {
      impl->leader->snapshot_wanted();
    }
  });
}

}  // namespace sherd::ft
