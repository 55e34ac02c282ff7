// SPDX-License-Identifier: Apache-2.0
#include "exchange/fake_link.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
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

// (link name, from, to, tag)
using Lane = std::tuple<std::string, int, int, int>;

}  // namespace

struct FakeNetwork::State {
  int ranks = 0;
  FakeOptions options;
  SteadyClock clock;
  std::mutex mu;
  std::condition_variable changed;
  // Guarded by mu:
  std::map<Lane, std::deque<Message>> lanes;
  std::vector<std::int64_t> operations;
  std::vector<bool> lost;
  std::uint64_t messages = 0;

  // REQUIRES: mu held. Counts an operation of `rank`, which may lose it.
  void count(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    if (rank == options.lost_rank && operations[r]++ == options.lost_at) {
      lost[r] = true;
      changed.notify_all();
    }
  }

  // REQUIRES: mu held.
  Status lost_status(const std::string& what) const {
    for (std::size_t r = 0; r < lost.size(); ++r) {
      if (lost[r]) {
        return {ErrorCode::kPeerLost,
                str("[exchange] rank ", r, " was lost during ", what)};
      }
    }
    return {};
  }

  Duration delay() {
    const auto max = Duration(options.delay_max).count();
    const auto draw = mix64(options.seed ^ mix64(messages++));
    return Duration(max == 0 ? 0 : static_cast<std::int64_t>(draw) & INT64_MAX) %
        Duration(max + 1);
  }
};

namespace {

using State = FakeNetwork::State;

class Sent final : public Transfer {
 public:
  bool done() const override { return true; }
  Status wait(const std::string&) override { return {}; }
};

class Received final : public Transfer {
 public:
  Received(std::shared_ptr<State> state, Lane lane, at::Tensor into)
      : state_(std::move(state)), lane_(std::move(lane)), into_(into) {}

  bool done() const override {
    const std::lock_guard lock(state_->mu);
    return taken_ || into_.numel() == 0 || arrived();
  }

  Status wait(const std::string& what) override {
    if (taken_ || into_.numel() == 0) {
      return {};
    }
    std::unique_lock lock(state_->mu);
    const auto limit = state_->clock.now() + state_->options.deadline;
    while (!arrived()) {
      if (auto status = state_->lost_status(what); !status.ok()) {
        return status;
      }
      if (state_->clock.now() >= limit) {
        return {ErrorCode::kDeadlineExceeded,
                str("[exchange] rank ", std::get<1>(lane_),
                    " did not answer in time: ", what)};
      }
      // Woken by a change, or when the message at the front falls due.
      state_->changed.wait_for(lock, std::chrono::milliseconds(1));
    }
    take();
    return {};
  }

 private:
  bool arrived() const {
    const auto found = state_->lanes.find(lane_);
    return found != state_->lanes.end() && !found->second.empty() &&
        found->second.front().due <= state_->clock.now();
  }
  void take() {
    auto& lane = state_->lanes[lane_];
    SHERD_ASSERT(lane.front().bytes.size() == into_.nbytes());
    std::memcpy(
        into_.mutable_data_ptr(), lane.front().bytes.data(), into_.nbytes());
    lane.pop_front();
    taken_ = true;
  }

  std::shared_ptr<State> state_;
  const Lane lane_;
  const at::Tensor into_;
  bool taken_ = false;
};

class FakeLink final : public Link {
 public:
  FakeLink(std::shared_ptr<State> state, int rank, std::string name)
      : state_(std::move(state)), rank_(rank), name_(std::move(name)) {}

  int index() const override { return rank_; }
  int size() const override { return state_->ranks; }
  int world_rank(int index) const override { return index; }

  std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) override {
    const std::lock_guard lock(state_->mu);
    state_->count(rank_);
    if (tensor.numel() > 0 && !state_->lost[static_cast<std::size_t>(rank_)]) {
      state_->lanes[{name_, rank_, peer, tag}].push_back(
          {std::string(
               static_cast<const char*>(tensor.const_data_ptr()),
               tensor.nbytes()),
           state_->clock.now() + state_->delay()});
      state_->changed.notify_all();
    }
    return std::make_unique<Sent>();
  }

  std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) override {
    {
      const std::lock_guard lock(state_->mu);
      state_->count(rank_);
    }
    return std::make_unique<Received>(
        state_, Lane{name_, peer, rank_, tag}, tensor);
  }

  Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& what) override {
    constexpr int kSizeTag = 1 << 30;
    constexpr int kTextTag = kSizeTag + 1;
    const auto byte = at::TensorOptions().dtype(c10::ScalarType::Byte);
    const auto length = static_cast<std::int64_t>(mine.size());
    auto size = at::empty({8}, byte);
    auto text = at::empty({length}, byte);
    std::memcpy(size.mutable_data_ptr(), &length, sizeof(length));
    std::memcpy(text.mutable_data_ptr(), mine.data(), mine.size());
    std::vector<std::string> all(static_cast<std::size_t>(state_->ranks), mine);
    for (int peer = 0; peer < state_->ranks; ++peer) {
      if (peer != rank_) {
        (void)send(size, peer, kSizeTag);
        (void)send(text, peer, kTextTag);
      }
    }
    for (int peer = 0; peer < state_->ranks; ++peer) {
      if (peer == rank_) {
        continue;
      }
      auto their_size = at::empty({8}, byte);
      auto status = receive(their_size, peer, kSizeTag)->wait(what);
      std::int64_t their_length = 0;
      std::memcpy(&their_length, their_size.const_data_ptr(), 8);
      auto their_text = at::empty({status.ok() ? their_length : 0}, byte);
      if (status.ok()) {
        status = receive(their_text, peer, kTextTag)->wait(what);
      }
      if (!status.ok()) {
        return status;
      }
      all[static_cast<std::size_t>(peer)] = std::string(
          static_cast<const char*>(their_text.const_data_ptr()),
          their_text.nbytes());
    }
    return all;
  }

  void abandon() override {
    const std::lock_guard lock(state_->mu);
    state_->lost[static_cast<std::size_t>(rank_)] = true;
    state_->changed.notify_all();
  }

 private:
  std::shared_ptr<State> state_;
  const int rank_;
  const std::string name_;
};

}  // namespace

FakeNetwork::FakeNetwork(int ranks, const FakeOptions& options)
    : state_(std::make_shared<State>()) {
  state_->ranks = ranks;
  state_->options = options;
  state_->operations.resize(static_cast<std::size_t>(ranks), 0);
  state_->lost.resize(static_cast<std::size_t>(ranks), false);
}

FakeNetwork::~FakeNetwork() = default;

std::unique_ptr<Link> FakeNetwork::link(int rank, const std::string& name) {
  return std::make_unique<FakeLink>(state_, rank, name);
}

std::unique_ptr<Exchange> FakeNetwork::exchange(int rank) {
  return make_collective_exchange(link(rank, "gather"), link(rank, "reduce"));
}

}  // namespace sherd::exchange
