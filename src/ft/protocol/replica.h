// SPDX-License-Identifier: Apache-2.0
//
// Replica is one replica's side of the protocol: what it may compute, reduce and
// apply, and what it has to say. A state machine like the coordinator's: orders
// and what its own processes have done come in, tasks go out. Gradients stay as
// they are until a step is decided, so that a reduction that failed is repeated
// and nothing else. Thread rule: one thread; a value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "ft/protocol/messages.h"

namespace sherd::ft {

// Gradients of these samples, of the state that is held. Without any: none, and
// it follows with zeros. Ends the task before it: what that one still computes is
// of no use.
struct ComputeTask {
  std::uint64_t serial = 0;  // Counts them.
  StateId base;
  std::vector<SampleRange> samples;
};
// Connect to these, beside those of the epoch under way.
struct JoinTask {
  Epoch epoch;
  std::vector<Member> members;
};
// Sum the gradients of the last ComputeTask, as they come.
struct ReduceTask {
  Attempt attempt;
  std::vector<Member> members;
};
// What is reduced under it is of no use any more; gradients stay.
struct StopReduceTask {
  Epoch epoch;
};
// The sum that was voted for, all or nothing.
struct ApplyTask {
  Commit commit;
};
// Fetch the sum of the commit after the held state, or another state as a whole,
// from replicas that are there: beside everything else, nothing is written yet.
struct CatchUpTask {
  std::optional<StateId> held;
  StateId target;
};
// It is not wanted any more.
struct StopCatchUpTask {};
// Write what was fetched, all or nothing.
struct InstallTask {
  std::uint64_t serial = 0;  // Counts them.
};
// For good.
struct StopTask {
  std::string reason;  // Empty: in order, since the run has ended.
};
// Tell the coordinator; also when it is connected anew, and every so often.
struct ReportTask {
  Report report;
};
using Task = std::variant<
    ComputeTask,
    JoinTask,
    ReduceTask,
    StopReduceTask,
    ApplyTask,
    CatchUpTask,
    StopCatchUpTask,
    InstallTask,
    StopTask,
    ReportTask>;
using Tasks = std::vector<Task>;

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

  // What its processes have done. What comes too late changes nothing.
  Tasks joined(const Epoch& epoch);
  Tasks reduced(const Attempt& attempt, std::uint64_t gradients);
  // One it is connected to for this epoch is lost, reducing or not, or cannot be
  // reached.
  Tasks peer_lost(const Suspicion& suspicion);
  // With its digest, if that was made.
  Tasks applied(
      const StateId& state, const std::optional<StateDigest>& digest = {});
  // Of the ComputeTask of that number: they are not reduced.
  Tasks bad_gradients(std::uint64_t serial, const GradientFault& fault);
  // For the last CatchUpTask; or it could not be done, and what it wants is told
  // anew.
  Tasks fetched();
  Tasks fetch_failed();
  // What it holds now.
  Tasks installed(
      std::uint64_t serial,
      const StateId& state,
      const std::optional<StateDigest>& digest = {});
  // Of parameters, found by their digests.
  Tasks damaged();
  Tasks leave();

  Report report() const;
  const std::optional<StateId>& held() const { return held_; }
  const std::optional<Vote>& vote() const { return vote_; }
  const RunView& view() const { return view_; }

  bool operator==(const Replica&) const = default;

 private:
  friend class ModelAccess;     // The model checker's.
  const Member* own_member() const;  // Its own, in the order; null: none.
  bool has_joined(const Epoch& epoch) const;
  void settle_vote(Tasks& tasks);
  void follow(Tasks& tasks);
  void join(Tasks& tasks);
  void catch_up(Tasks& tasks);
  void stop_reducing(Tasks& tasks);
  void forget_gradients();

  ReplicaIdentity identity_;
  std::uint64_t run_ = 0;
  std::optional<StateId> held_;
  RunView view_;  // The last; at first of term 0.
  Epoch joining_;
  std::vector<Epoch> joined_;  // The one under way and the planned one.
  Epoch abandoned_epoch_;  // Nothing is reduced in it or before it any more.
  // The gradients that there are, or will be: of these samples, of held_.
  std::optional<std::vector<SampleRange>> samples_;
  std::uint64_t serial_ = 0;
  std::optional<Attempt> reducing_;
  std::optional<Vote> vote_;
  std::optional<Commit> applying_;  // Until then held_ is what it was.
  std::optional<Suspicion> suspicion_;
  std::optional<StateDigest> digest_;
  std::optional<BadGradients> bad_gradients_;  // Those that there are.
  std::optional<StateId> catching_up_;         // What for.
  std::uint64_t installs_ = 0;
  bool installing_ = false;  // Until then nobody knows what it holds.
  bool leaving_ = false;
  bool stopped_ = false;
};

}  // namespace sherd::ft
