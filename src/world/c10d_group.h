// SPDX-License-Identifier: Apache-2.0
//
// C10dGroup is what Communicator and World's barrier are made of: point-to-point
// messages among some ranks over one c10d backend, with waits that end when any
// rank of the group is lost. Only send and receive of the backend are used:
// over Gloo they are faster than its collectives, need none of its worker
// threads (whose work its destructor would wait for), and can be interrupted.
//
// Gloo facts this rests on (pinned by group_test.cpp): a timed-out wait breaks
// every connection of the group; Work::abort() makes a wait return false and
// breaks nothing; a message under way when its connection breaks is never told;
// memory of a message is read and written until then. Hence the first failure
// breaks all connections of the group before anybody hears of it.
//
// A rank that is done with a group says farewell: one byte to every member, by
// the connections that carry everything else, so that whoever has it has all
// that was sent before. Who waits for such a rank after that waits in vain, and
// fails at the watch's next tick.
// Thread rule: one thread starts, one (the same or another) waits; abandon(),
// leave() and the watch's interrupt() from any.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "base/status.h"

namespace c10d {
class Backend;
}

namespace sherd::world {

class PeerWatch;
struct Operation;  // The backend's handle on a message; in group.cpp.

// An operation under way. Movable; dropping it does not cancel it: the group
// keeps it, and its tensor, until it was waited for or the group is abandoned.
struct Pending {
  std::shared_ptr<Operation> work;  // Null: complete, or failed at start.
  int peer = -1;                    // Index in the group.
  bool failed = false;              // At start; wait() says why.
};

struct C10dGroupOptions {
  std::vector<int> ranks;  // World ranks, ascending.
  int own_rank = 0;        // World rank; REQUIRES: one of `ranks`.
  std::chrono::milliseconds deadline{0};
  // What a member closes when it leaves, for errors: "its World". Empty: the
  // backend is somebody else's, and members say no farewells.
  std::string name{};
};

class C10dGroup {
 public:
  // `watch` must outlive the group. `backend` may be null for one rank.
  C10dGroup(
      const C10dGroupOptions& options,
      c10::intrusive_ptr<c10d::Backend> backend,
      PeerWatch& watch);
  ~C10dGroup();
  C10dGroup(const C10dGroup&) = delete;
  C10dGroup& operator=(const C10dGroup&) = delete;

  int index() const;
  int size() const;
  int world_rank(int index) const;
  // No member is outside `ranks`.
  bool has_only(const std::vector<int>& ranks) const;

  // As in Communicator, whose contracts hold.
  Pending send(const at::Tensor& tensor, int peer, int tag);
  Pending receive(const at::Tensor& tensor, int peer, int tag);
  Status wait(Pending& pending, const std::string& what);
  Status barrier(const std::string& what);
  void abandon(const Status& why);

  // Says farewell: this rank starts nothing more in this group, and whoever
  // waits for it fails. Never waits, tells nobody once the group has failed or
  // while a message is under way that was not waited for. Idempotent.
  void leave();
  // Collective: leaves, and returns when every member has left. Member 0 calls
  // `at_last` in between: after all have left, and before any other returns.
  Status close(const std::string& what, const std::function<void()>& at_last);

  // The first failure, or success.
  Status failure() const;

  // Tags from here on belong to the group's own messages.
  static constexpr int kOwnTags = 1 << 30;
  // One for each collective in turn, so that a rank that skipped one waits in
  // vain instead of taking another's bytes.
  int next_own_tag();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd::world
