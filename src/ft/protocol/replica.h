// SPDX-License-Identifier: Apache-2.0
//
// Replica is one replica's side of the protocol, a state machine like the coordinator's: the
// coordinator's views of the run and the results of the replica's own processes come in, tasks go
// out. It keeps gradients until their step is decided, so that only a failed reduction is repeated
// and no gradient is computed twice. Thread rule: one thread; a value.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "ft/protocol/tasks.h"

namespace sherd::ft {

struct ReplicaIdentity {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;  // Never 0.
  std::uint64_t config = 0;     // Never 0.
  StateId held;
  bool operator==(const ReplicaIdentity&) const = default;
};

class Replica {
 public:
  explicit Replica(const ReplicaIdentity& options);

  Tasks received(const RunView& view);

  // ---- results of the replica's processes; a result that comes too late changes nothing ----

  Tasks joined(const Epoch& epoch);
  Tasks reduced(const Attempt& attempt, std::uint64_t gradients);
  // A peer of this replica in the epoch is lost or cannot be reached.
  Tasks peer_lost(const Suspicion& suspicion);
  // `digest` is the digest of the state, if one was computed.
  Tasks applied(
      const StateId& state, const std::optional<StateDigest>& digest = {});
  // The gradients of the ComputeTask with this `serial` must not be reduced. Of several faults of
  // the same gradients the first is reported, and later the first that stops the run.
  Tasks bad_gradients(std::uint64_t serial, const GradientFault& fault);
  // The last CatchUpTask has ended. The fetched state is installed if this view or the next one
  // says that it was committed: a replica that holds a step must also remember its commit, in case
  // the log is lost. Otherwise, and after a failure, the task is issued again.
  Tasks fetched(const StateId& state);
  Tasks fetch_failed();
  Tasks installed(
      std::uint64_t serial,
      const StateId& state,
      const std::optional<StateDigest>& digest = {});
  // The digests have shown that the replica's parameters are wrong.
  Tasks damaged();
  Tasks leave();

  Report report() const;
  const std::optional<StateId>& held() const { return held_; }
  // Whether it has a sum that is not decided yet, or not applied.
  bool votes() const { return vote_.has_value(); }
  const RunView& view() const { return view_; }

  bool operator==(const Replica&) const = default;

 private:
  friend class ModelAccess;  // For the model checker.
  struct CatchUp {
    StateId target;
    // Set while the state waits for a view that names it.
    std::optional<StateId> fetched{};
    bool operator==(const CatchUp&) const = default;
  };
  // As in the last view; null if it is no member.
  const Member* own_member() const;
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
  RunView view_;  // The last view; initially that of term 0.
  Epoch joining_;
  std::vector<Epoch> joined_;  // The current epoch and the planned one.
  Epoch abandoned_epoch_;  // It no longer reduces in this epoch or older ones.
  // The samples whose gradients it has or is computing, based on held_.
  std::optional<std::vector<SampleRange>> samples_;
  std::uint64_t serial_ = 0;
  std::optional<Attempt> reducing_;
  std::optional<Vote> vote_;
  // Until it is applied, held_ is the base of the commit.
  std::optional<Commit> applying_;
  std::optional<Suspicion> suspicion_;
  std::optional<StateDigest> digest_;
  // Those among the gradients of samples_.
  std::optional<BadGradients> bad_gradients_;
  // The serial of the last ones that were reported.
  std::optional<std::uint64_t> faulty_serial_;
  std::optional<CatchUp> catching_up_;
  std::uint64_t installs_ = 0;
  // Until the installation ends, nobody knows what is held.
  bool installing_ = false;
  bool asked_ = false;  // By a coordinator whose log is empty.
  bool leaving_ = false;
  bool stopped_ = false;
  Tasks tasks_;  // Only set during a call: what it has decided so far.
};

}  // namespace sherd::ft
