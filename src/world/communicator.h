// SPDX-License-Identifier: Apache-2.0
//
// Communicator moves CPU tensors between the ranks of one group over one c10d
// backend, and turns every failure into a Status that names the rank. It adds
// no protocol: who sends what in which order is the caller's business, and so
// is that both sides of a message agree on its bytes (Gloo ends the process of
// a receiver that gets more than it has room for).
// Indices are positions in the group, errors name world ranks. The caller keeps
// tensors alive and unchanged until their operation was waited for or the group
// was abandoned. Thread rule: one thread calls send, receive and collectives,
// one (the same or another) wait(); abandon() from any, it ends waits.
//
// When any rank of the group is lost, every wait of the group ends, also one
// for a rank that is well: the job cannot go on. The first failure is kept and
// is what every later wait returns; then the group is only good for abandon().
// When a failure is returned, tensors are the caller's again: a late peer writes
// nothing into them, and gets nothing that is written there afterwards.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <sherd/world/world.h>
#include "base/status.h"
#include "world/c10d_group.h"

namespace sherd::world {

enum class ReduceOp { kSum, kMax, kMin };

class Communicator {
 public:
  // Collective over `ranks` (world ranks, ascending, equal on all): connects
  // them under `name`, unique in this world. Waits have the world's deadline
  // unless another one is given. Throws Error on failure.
  Communicator(
      const World& world,
      const std::string& name,
      std::vector<int> ranks,
      std::optional<std::chrono::milliseconds> deadline = std::nullopt);
  // The same over a backend somebody else connected, with `ranks` in its order.
  // Nobody else may use it meanwhile. It must have send and recv for CPU
  // tensors; where its Work has no abort(), only its deadline ends a wait.
  Communicator(
      const World& world,
      c10::intrusive_ptr<c10d::Backend> backend,
      std::vector<int> ranks);
  // Never waits, and leaves, see leave(). The connections stay until every
  // member has come this far and connects something else, or until
  // World::close(), because a peer may not have received the last message yet;
  // after a failure they end at once.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int index() const;
  int size() const;
  int world_rank(int index) const;

  // Start moving a contiguous tensor; messages of one (peer, tag) keep order.
  // A zero-element tensor moves nothing and is complete at once. 0 <= tag <
  // 2^30. A send may copy what fits into the socket's buffer before returning.
  // A failure is kept for wait().
  Pending send(const at::Tensor& tensor, int peer, int tag);
  Pending receive(const at::Tensor& tensor, int peer, int tag);

  // Waits until done or the deadline. A failure is kPeerLost (naming
  // the rank that was lost first, which need not be the peer), kAborted (that
  // rank gave up by itself and said why) or kDeadlineExceeded (naming the
  // peer), and `what` says what was waited for, e.g. "gather of unit h.3".
  Status wait(Pending& pending, const std::string& what);

  // Collective; they block and every rank must call them in the same order.
  Status barrier(const std::string& what);
  // In place, contiguous CPU tensor. Values are combined in the order of
  // indices, half-precision sums in fp32, so all ranks get the same bits.
  Status all_reduce(
      const at::Tensor& tensor, ReduceOp op, const std::string& what);
  Status broadcast(const at::Tensor& tensor, int root, const std::string& what);
  // Every rank's string, by index.
  Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& what);

  // Ends the group after a failure: nothing waits any longer, peers that wait
  // for this rank fail at once and name the cause, which is this group's first
  // failure, else this rank for the reason `why`. Idempotent, not collective.
  void abandon(const Status& why = {});

  // This rank is done in order: a peer that waits for anything which it has not
  // sent fails within a fraction of a second, naming it. Never waits, idempotent,
  // not collective; tells nobody while something that was started here was not
  // waited for. Only abandon() may follow.
  void leave();

 private:
  World world_;  // Its watch outlives the group.
  std::string name_;
  std::unique_ptr<C10dGroup> group_;
};

}  // namespace sherd::world
