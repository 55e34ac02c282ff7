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
// it follows with zeros.
struct ComputeTask {
  std::int64_t step = 0;
  std::vector<SampleRange> samples;
};
// Close what connects it to members of older epochs, and connect to these.
struct JoinTask {
  Epoch epoch;
  std::vector<Member> members;
};
struct ReduceTask {
  Attempt attempt;
  std::vector<Member> members;
};
// A reduction under way is of no use any more; its gradients stay.
struct StopReduceTask {
  Epoch epoch;
};
// The sum that was voted for, all or nothing.
struct ApplyTask {
  Commit commit;
};
// From replicas that hold it.
struct FetchTask {
  StateId state;
};
// For good.
struct StopTask {
  std::string reason;
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
    FetchTask,
    StopTask,
    ReportTask>;
using Tasks = std::vector<Task>;

class Replica {
 public:
  Replica(ReplicaId replica, Incarnation incarnation, StateId held);

  Tasks heard(const Order& order);

  // What its processes have done. What comes too late changes nothing.
  Tasks computed(std::int64_t step);
  Tasks joined(const Epoch& epoch);
  Tasks reduced(const Attempt& attempt, std::uint64_t gradients);
  Tasks reduce_failed(const Epoch& epoch, Suspicion suspicion);
  Tasks fetched(const StateId& state);
  // Of parameters, found by their digests.
  Tasks damaged();
  Tasks leave();

  Report report() const;
  const std::optional<StateId>& held() const { return held_; }
  const std::optional<Vote>& vote() const { return vote_; }

  bool operator==(const Replica&) const = default;

 private:
  friend class ModelAccess;     // The model checker's.
  const Member* place() const;  // Its own, in the order; null: none.
  void settle_vote(Tasks& tasks);
  void follow(Tasks& tasks);
  void stop_reducing(Tasks& tasks);
  void forget_gradients();

  ReplicaId replica_;
  Incarnation incarnation_;
  std::optional<StateId> held_;
  Order order_;  // The last; at first of term 0.
  Epoch joining_;
  Epoch joined_;
  // The gradients that are kept, or computed: of these samples, of held_.
  std::optional<std::vector<SampleRange>> samples_;
  bool computed_ = false;
  bool reducing_ = false;  // Under joined_.
  std::optional<Vote> vote_;
  std::optional<Suspicion> suspicion_;
  std::optional<StateId> fetching_;
  bool leaving_ = false;
  bool stopped_ = false;
};

}  // namespace sherd::ft
