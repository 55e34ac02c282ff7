// SPDX-License-Identifier: Apache-2.0
//
// Replica is one replica's side of the protocol, a state machine like the coordinator's: the
// coordinator's views of the run and the results of the replica's own processes come in, tasks go
// out. It keeps gradients until their step is decided, so that a failed reduction alone is repeated
// and nothing is computed twice. Thread rule: one thread; a value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "ft/protocol/tasks.h"

namespace sherd::ft {

struct ReplicaIdentity {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;  // Not 0.
  std::uint64_t config = 0;
  StateId held;
  bool operator==(const ReplicaIdentity&) const = default;
};

class Replica {
 public:
  explicit Replica(const ReplicaIdentity& options);

  Tasks received(const RunView& view);

  // ---- results of the replica's processes; one that comes too late changes nothing ----

  Tasks joined(const Epoch& epoch);
  Tasks reduced(const Attempt& attempt, std::uint64_t gradients);
  // A replica that this one is connected to for the epoch is lost or cannot be reached.
  Tasks peer_lost(const Suspicion& suspicion);
  // `digest`: the state's, if one was made.
  Tasks applied(
      const StateId& state, const std::optional<StateDigest>& digest = {});
  // The gradients of the ComputeTask `serial` are not reduced.
  Tasks bad_gradients(std::uint64_t serial, const GradientFault& fault);
  // The end of the last CatchUpTask. What was fetched is installed if this view or the next one tells
  // that it was committed: a replica that holds a step also remembers it, for a log that is lost.
  // Else, and after a failure, the task is given anew.
  Tasks fetched(const StateId& state);
  Tasks fetch_failed();
  Tasks installed(
      std::uint64_t serial,
      const StateId& state,
      const std::optional<StateDigest>& digest = {});
  // The digests have shown that its parameters are wrong.
  Tasks damaged();
  Tasks leave();

  Report report() const;
  const std::optional<StateId>& held() const { return held_; }
  const RunView& view() const { return view_; }

  bool operator==(const Replica&) const = default;

 private:
  friend class ModelAccess;  // The model checker's.
  struct CatchUp {
    StateId target;
    std::optional<StateId> fetched{};  // It waits for a view that names it.
    bool operator==(const CatchUp&) const = default;
  };
  const Member* own_member() const;  // In the last view; null: it is none.
  bool has_joined(const Epoch& epoch) const;
  void settle_vote();
  void follow();
  void join();
  void reduce();
  void catch_up();
  void install_what_is_named();
  void stop_catching_up();
  void stop_reducing();
  void forget_gradients();
  Tasks hold(const StateId& state, const std::optional<StateDigest>& digest);
  Tasks finish(bool reports = true);

  ReplicaIdentity identity_;
  std::uint64_t run_ = 0;
  std::optional<StateId> held_;
  RunView view_;  // The last one; at first that of term 0.
  Epoch joining_;
  std::vector<Epoch> joined_;  // The epoch under way and the planned one.
  Epoch
      abandoned_epoch_;  // It reduces in this epoch and in older ones no more.
  // Whose gradients there are, or will be; their base is held_.
  std::optional<std::vector<SampleRange>> samples_;
  std::uint64_t serial_ = 0;
  std::optional<Attempt> reducing_;
  std::optional<Vote> vote_;
  std::optional<Commit> applying_;  // Until it is applied, held_ is its base.
  std::optional<Suspicion> suspicion_;
  std::optional<StateDigest> digest_;
  std::optional<BadGradients> bad_gradients_;  // Those of samples_.
  std::optional<CatchUp> catching_up_;
  std::uint64_t installs_ = 0;
  bool installing_ = false;  // Until it ends nobody knows what is held.
  bool asked_ = false;       // By a coordinator whose log is empty.
  bool leaving_ = false;
  bool stopped_ = false;
  Tasks tasks_;  // Only during a call: what it has decided so far.
};

}  // namespace sherd::ft
