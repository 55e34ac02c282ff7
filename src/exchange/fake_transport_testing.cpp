// SPDX-License-Identifier: Apache-2.0
#include "exchange/fake_transport_testing.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include <ATen/ops/empty.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/hash.h"
#include "exchange/collective_exchange.h"

namespace sherd::exchange {
namespace {

struct Message {
  std::string bytes;
  Instant due{};
};

// (transport name, from, to, tag)
using LaneName = std::tuple<std::string, int, int, int>;

struct Lane {
  std::deque<Message> under_way;
  std::uint64_t sent = 0;
  Instant due{};  // The last one's.
};

}  // namespace

struct FakeNetwork::State {
  struct Rank {
    std::int64_t operations = 0;
    bool lost = false;
    // Nothing is sent any more: it gave up, or is lost.
    bool gone = false;
    std::string why;  // After "rank 3 ", once it is gone.
  };

  FakeOptions options;
  const SteadyClock clock;
  mutable std::mutex mu;
  // A wait reads lanes, ranks and any_lost; who adds a message or marks a rank
  // gone or lost notifies all before it lets go of mu. Time alone makes messages
  // due, so waits end when theirs is.
  std::condition_variable changed;
  // Guarded by mu:
  std::map<LaneName, Lane> lanes;
  std::vector<Rank> ranks;
  bool any_lost = false;
  std::string cause;  // What went wrong first, naming the rank.

  Rank& rank(int index) { return ranks.at(static_cast<std::size_t>(index)); }

  // REQUIRES: mu held. Counts an operation of the rank, which may lose it.
  void count(int index) {
    if (rank(index).operations++ == options.lost_at &&
        index == options.lost_rank) {
      lose(index);
    }
  }

  // REQUIRES: mu held.
  void lose(int index) {
    if (!rank(index).gone) {
      rank(index) = {rank(index).operations, true, true, "was lost"};
      blame(str("rank ", index, " was lost"));
      any_lost = true;
      changed.notify_all();
    }
  }

  // REQUIRES: mu held.
  void leave(int index, const std::string& why) {
    if (!rank(index).gone) {
      rank(index).gone = true;
      rank(index).why = why;
      changed.notify_all();
    }
  }

  // REQUIRES: mu held. As when connections break.
  void drop_messages_under_way(int from) {
    for (auto& [name, lane] : lanes) {
      if (std::get<1>(name) == from) {
        std::erase_if(lane.under_way, [&](const Message& message) {
          return message.due > clock.now();
        });
      }
    }
  }

  // REQUIRES: mu held.
  void blame(const std::string& what) {
    if (cause.empty()) {
      cause = what;
    }
  }

  // Drawn from the seed, for the next message of a lane.
  Duration delay(const LaneName& name, const Lane& lane) const {
    const auto& [transport, from, to, tag] = name;
    const auto draw = Hash64()
                          .add(options.seed)
                          .add(transport)
                          .add(static_cast<std::uint64_t>(from))
                          .add(static_cast<std::uint64_t>(to))
                          .add(static_cast<std::uint64_t>(tag))
                          .add(lane.sent)
                          .value();
    const Duration max = options.delay_max;
    return Duration(static_cast<std::int64_t>(
        draw % (static_cast<std::uint64_t>(max.count()) + 1)));
  }
};

namespace {

using State = FakeNetwork::State;

class Sent final : public world::Transfer {
 public:
  Status wait(const std::string&) override { return {}; }
};

class Received final : public world::Transfer {
 public:
  Received(std::shared_ptr<State> state, LaneName lane, at::Tensor into)
      : state_(std::move(state)),
        lane_(std::move(lane)),
        into_(std::move(into)) {}

  Status wait(const std::string& what) override {
    if (taken_ || into_.numel() == 0) {
      return {};
    }
    std::unique_lock lock(state_->mu);
    const auto limit = state_->clock.now() + state_->options.deadline;
    for (Instant at = due(); at != Instant::min(); at = due()) {
      if (auto status = failure(limit, what); !status.ok()) {
        return status;
      }
      const auto rest = std::min(limit, at) - state_->clock.now();
      state_->changed.wait_for(lock, std::max(rest, Duration(0)));
    }
    take();
    return {};
  }

 private:
  int peer() const { return std::get<1>(lane_); }

  // When the message falls due; min: now, max: it was not sent yet.
  Instant due() const {
    const auto found = state_->lanes.find(lane_);
    if (found == state_->lanes.end() || found->second.under_way.empty()) {
      return Instant::max();
    }
    const auto when = found->second.under_way.front().due;
    return when <= state_->clock.now() ? Instant::min() : when;
  }

  // Why waiting on would be in vain, if it would.
  Status failure(Instant limit, const std::string& what) {
    const int self = std::get<2>(lane_);
    const bool never = state_->rank(peer()).gone && due() == Instant::max();
    if (state_->any_lost || never || state_->rank(self).gone) {
      const int gone = never ? peer() : self;
      const auto cause = !state_->cause.empty()
          ? state_->cause
          : str("rank ", gone, " ", state_->rank(gone).why);
      return {
          ErrorCode::kPeerLost,
          str("[exchange] ", cause, "; rank ", self, " waited for ", what,
              " with rank ", peer())};
    }
    if (state_->clock.now() >= limit) {
      const auto late = str("rank ", peer(), " did not answer in time");
      state_->blame(late);
      return {
          ErrorCode::kDeadlineExceeded, str("[exchange] ", late, ": ", what)};
    }
    return {};
  }

  void take() {
    auto& messages = state_->lanes[lane_].under_way;
    SHERD_ASSERT(messages.front().bytes.size() == into_.nbytes());
    std::memcpy(
        into_.mutable_data_ptr(), messages.front().bytes.data(),
        into_.nbytes());
    messages.pop_front();
    taken_ = true;
  }

  std::shared_ptr<State> state_;
  const LaneName lane_;
  const at::Tensor into_;
  bool taken_ = false;
};

class FakeTransport final : public world::Transport {
 public:
  FakeTransport(
      std::shared_ptr<State> state,
      int rank,
      std::string name,
      std::vector<int> ranks)
      : world::Transport(std::move(ranks), rank),
        state_(std::move(state)),
        rank_(rank),
        name_(std::move(name)) {}
  ~FakeTransport() override {
    const std::lock_guard lock(state_->mu);
    state_->leave(rank_, "left");
  }
  std::unique_ptr<world::Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    const std::lock_guard lock(state_->mu);
    state_->count(rank_);
    if (tensor.numel() > 0 && !state_->rank(rank_).gone) {
      const LaneName name{name_, rank_, world_rank(peer), tag};
      auto& lane = state_->lanes[name];
      // Not before those sent earlier, so that none of them is lost alone.
      lane.due =
          std::max(lane.due, state_->clock.now() + state_->delay(name, lane));
      lane.under_way.push_back(
          {std::string(
               static_cast<const char*>(tensor.const_data_ptr()),
               tensor.nbytes()),
           lane.due});
      ++lane.sent;
      state_->changed.notify_all();
    }
    return std::make_unique<Sent>();
  }

  std::unique_ptr<world::Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    {
      const std::lock_guard lock(state_->mu);
      state_->count(rank_);
    }
    return std::make_unique<Received>(
        state_, LaneName{name_, world_rank(peer), rank_, tag}, tensor);
  }

  void abandon(const Status& why) override {
    const std::lock_guard lock(state_->mu);
    if (!state_->rank(rank_).gone) {
      state_->leave(rank_, "gave up: " + why.message());
      state_->drop_messages_under_way(rank_);
    }
  }

  void leave() override {
    const std::lock_guard lock(state_->mu);
    state_->leave(rank_, "left");
  }

 private:
  std::shared_ptr<State> state_;
  const int rank_;
  const std::string name_;
};

}  // namespace

FakeNetwork::FakeNetwork(int ranks, const FakeOptions& options)
    : state_(std::make_shared<State>()) {
  state_->options = options;
  state_->ranks.resize(static_cast<std::size_t>(ranks));
}

FakeNetwork::~FakeNetwork() = default;

std::shared_ptr<world::Transport> FakeNetwork::transport(
    int rank, const std::string& name) {
  std::vector<int> all(state_->ranks.size());
  std::iota(all.begin(), all.end(), 0);
  return transport(rank, name, std::move(all));
}

std::shared_ptr<world::Transport> FakeNetwork::transport(
    int rank, const std::string& name, std::vector<int> ranks) {
  return std::make_unique<FakeTransport>(state_, rank, name, std::move(ranks));
}

std::unique_ptr<Exchange> FakeNetwork::exchange(int rank) {
  return make_collective_exchange(
      transport(rank, "gather"), transport(rank, "reduce"));
}

std::unique_ptr<Exchange> FakeNetwork::exchange(
    int rank, const std::string& name, const std::vector<int>& ranks) {
  return make_collective_exchange(
      transport(rank, name + "/gather", ranks),
      transport(rank, name + "/reduce", ranks));
}

void FakeNetwork::lose(int rank) {
  const std::lock_guard lock(state_->mu);
  state_->lose(rank);
}

std::int64_t FakeNetwork::operations(int rank) const {
  const std::lock_guard lock(state_->mu);
  return state_->ranks.at(static_cast<std::size_t>(rank)).operations;
}

}  // namespace sherd::exchange
