// SPDX-License-Identifier: Apache-2.0
//
// Transport moves CPU tensors between the ranks of one group: tagged point-to-point messages, and
// nothing else. Collectives (collectives.h) and the exchange of parameters and gradients are
// written on top of it, so that they run the same way over c10d and over the in-process fake of the
// tests, which delays, reorders and fails.
//
// Indices are positions in the group; errors name world ranks. Both sides of a message agree on its
// bytes: Gloo ends the process of a receiver that gets more than it has room for. The caller keeps
// tensors alive and unchanged until their transfer was waited for or the group was abandoned.
//
// When any rank of the group is lost, every wait of the group ends, even one for a healthy rank:
// the job cannot go on. The first failure is kept, and every later wait returns it; the only useful
// call is then abandon(). When a failure is returned, tensors belong to the caller again: a late
// peer writes nothing into them, and gets nothing that is written there afterwards.
//
// Thread rule: one thread starts transfers and runs collectives, one (the same or another) waits;
// abandon() may be called by any thread, and ends waits.
#pragma once

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/world/world.h>
#include "base/check.h"
#include "base/status.h"

namespace sherd::world {

// Ends the failure of a wait for a rank of another host where that host is silent as a whole and
// ranks of this one have answered. Then this rank is not alone with what it does.
inline constexpr const char* kHostIsSilent =
    ", unlike ranks of this host: is that host or its network down?";

// A message under way. Dropping it does not cancel it: the transport keeps the message and its
// tensor until the group is abandoned or ends. The transport must outlive the wait.
class Transfer {
 public:
  virtual ~Transfer() = default;

  // Waits until the transfer is done or the transport's deadline has passed. A failure is kPeerLost
  // (naming the rank that was lost first, which need not be the peer), kAborted (that rank gave up
  // by itself and said why) or kDeadlineExceeded (naming the peer); `what` says what was waited
  // for, e.g. "gather of unit h.3".
  [[nodiscard]] virtual Status wait(const std::string& what) = 0;
};

using Transfers = std::vector<std::unique_ptr<Transfer>>;

// Waits for all, in order; stops at the first failure.
inline Status wait_all(const Transfers& transfers, const std::string& what) {
  for (const auto& transfer : transfers) {
    if (auto status = transfer->wait(what); !status.ok()) {
      return status;
    }
  }
  return {};
}

class Transport {
 public:
  // `ranks` are the group's world ranks, ascending; `own_rank` is one of them.
  Transport(std::vector<int> ranks, int own_rank)
      : ranks_(std::move(ranks)),
        index_(static_cast<int>(
            std::ranges::find(ranks_, own_rank) - ranks_.begin())) {
    SHERD_ASSERT(index_ < size(), "a group is made by its members");
  }
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const std::vector<int>& ranks() const { return ranks_; }
  int index() const { return index_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int index) const {
    return ranks_.at(static_cast<std::size_t>(index));
  }

  // Starts moving a contiguous tensor. Messages of one (peer, tag) keep their order; a tensor
  // without elements moves nothing and is done at once. Callers' own messages use 0 <= tag <
  // kCollectiveTags. A send may copy what fits into the socket's buffer before it returns. A
  // failure is kept for the wait.
  virtual std::unique_ptr<Transfer> send(
      const at::Tensor& tensor, int peer, int tag) = 0;
  virtual std::unique_ptr<Transfer> receive(
      const at::Tensor& tensor, int peer, int tag) = 0;

  // Ends the group after a failure: nothing waits any longer, and peers that wait for this rank
  // fail at once and name the cause, which is this group's first failure or, if there is none, this
  // rank with the reason `why`. Idempotent, not collective.
  virtual void abandon(const Status& why) = 0;

  // This rank is done in order: a peer that waits for anything that it has not sent fails within a
  // fraction of a second, naming this rank. Never waits, and tells nobody as long as something
  // started here was not waited for. Idempotent, not collective; callable from any thread while no
  // other thread starts transfers. Only abandon() may follow.
  virtual void leave() = 0;

  // The tags from here on belong to collectives of all ranks. Each collective takes the next one,
  // so that a rank that skipped one waits in vain instead of receiving another one's bytes.
  static constexpr int kCollectiveTags = 1 << 30;
  int next_collective_tag() {
    last_collective_ = (last_collective_ + 1) % (1 << 20);
    return kCollectiveTags + last_collective_;
  }

 private:
  const std::vector<int> ranks_;
  const int index_;
  int last_collective_ = 0;
};

// Collective over `ranks` (world ranks, ascending, equal on all): connects them over c10d's Gloo
// backend under `name`, unique in this world. Waits have the world's deadline unless another one is
// given. Throws Error on failure. With a single rank nothing can be sent.
//
// Releasing the transport leaves the group and never waits. The connections stay until every member
// has done the same and connects something else, or until World::close(), because a peer may not
// have received the last message yet; after a failure they end at once.
std::shared_ptr<Transport> make_c10d_transport(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    std::optional<std::chrono::milliseconds> deadline = std::nullopt);

// The same for transports that live as long as a model: with WorldOptions::share_connections it
// returns a channel of existing connections for the same ranks, deadline and purpose, which is the
// last part of `name`. It connects the ranks anew when those connections have no channel left.
std::shared_ptr<Transport> make_model_transport(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    std::optional<std::chrono::milliseconds> deadline = std::nullopt);

}  // namespace sherd::world
