// SPDX-License-Identifier: Apache-2.0
//
// Communicator moves CPU tensors between the ranks of one group over one c10d
// backend, and turns every failure into a Status that names the rank. It adds
// no protocol: who sends what in which order is the caller's business.
// Indices are positions in the group, errors name world ranks. It shares the
// backend; the caller keeps tensors alive and unchanged until their operation
// was waited for. Thread rule: one thread.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <sherd/comm/world.h>
#include "base/status.h"

namespace c10d {
class Work;
}

namespace sherd::comm {

// An operation under way. Movable; dropping it does not cancel it.
struct Pending {
  c10::intrusive_ptr<c10d::Work> work;  // Null: complete.
  at::Tensor tensor;                    // Kept alive until waited for.
  int peer = -1;                        // Index in the group.
};

enum class ReduceOp { kSum, kMax, kMin };

class Communicator {
 public:
  // Collective over `ranks` (world ranks, ascending, equal on all): connects
  // them under `name`, unique in this world. Throws Error on failure.
  Communicator(
      const World& world, const std::string& name, std::vector<int> ranks);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int index() const;
  int size() const;
  int world_rank(int index) const;

  // Start moving a contiguous tensor; messages of one (peer, tag) keep order.
  // A zero-element tensor moves nothing and is complete at once.
  Pending send(const at::Tensor& tensor, int peer, int tag);
  Pending receive(const at::Tensor& tensor, int peer, int tag);

  // Waits until done or the world's deadline. A failure is kPeerLost (naming
  // the rank that was lost first, which need not be the peer) or
  // kDeadlineExceeded (naming the peer), and `what` says what was waited for,
  // e.g. "gather of unit h.3". After a failure the group is only good for
  // abandon().
  Status wait(Pending& pending, const std::string& what);
  // True when wait() would not block. Never blocks.
  bool done(const Pending& pending) const;

  // Collective, in place, contiguous CPU tensor; blocks.
  Status all_reduce(const at::Tensor& tensor, ReduceOp op, const std::string& what);
  Status broadcast(const at::Tensor& tensor, int root, const std::string& what);
  // Every rank's string, by index.
  Result<std::vector<std::string>> all_gather(
      const std::string& mine, const std::string& what);

  // Ends the group after a failure: nothing waits any longer, peers that wait
  // for this rank fail. Idempotent; not collective.
  void abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::comm
