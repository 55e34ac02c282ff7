// SPDX-License-Identifier: Apache-2.0
//
// Coordinator decides who trains together and which steps are committed. It is a
// state machine: reports, losses and the time come in, decisions go out, each with
// its reason; whoever runs it appends records to the log, on the disk, before it
// carries out what comes after them. Nothing else of it needs to outlive it.
// Thread rule: one thread; a value, which the model checker copies.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/history.h"
#include "ft/protocol/link_faults.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct CoordinatorOptions {
  // Behaviour. Of a new log: drawn at random, not 0.
  std::uint64_t run = 1;
  // Behaviour. No step is committed by fewer.
  int replicas_min = 1;
  // Behaviour. Replicas are numbered below it.
  ReplicaId replicas_max = 4096;
  // Behaviour. Of each replica, in each step; a step has fewer while replicas are
  // missing.
  std::int64_t samples_per_replica = 1;
  // Behaviour. Or of all together: each takes its share, in multiples of what its
  // ranks can divide, and the others' while they are missing. 0: as above.
  std::int64_t samples_in_all = 0;
  std::int64_t samples_multiple = 1;
  // Behaviour. A new log may begin with what replicas have loaded from a disk.
  bool recovers = false;
  // Behaviour. The first epoch of all waits for so many replicas, or so long.
  int replicas_start = 1;
  Duration start_timeout = std::chrono::seconds(60);
  // Performance. Failures that come together make one epoch.
  Duration settle = std::chrono::milliseconds(30);
  // Performance. Until members of a new epoch have joined it, and until those
  // that lack the last commit have it; who is later is left out.
  Duration join_timeout = std::chrono::seconds(1);
  // Performance. After a start, until the members of the last epoch are back.
  Duration reconnect_timeout = std::chrono::seconds(1);
  // Performance. After the first vote; then the votes that are there commit.
  Duration vote_timeout = std::chrono::seconds(2);
  // Performance. How long a replica stays out that failed its peers for the
  // second time, doubled each time.
  Duration backoff = std::chrono::seconds(1);
  Duration backoff_max = std::chrono::seconds(60);
  // Behaviour. How long the only holders of the last step may be away.
  Duration hold_time = std::chrono::seconds(60);
};

struct AppendRecord {
  Record record;
};
struct SendView {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  RunView view;
};
// For who watches: what was found out, whoever caused it; the reason says how.
struct DetectedFault {
  std::string counter;  // Of how often: [a-z_]+.
  std::string culprit;
};
struct CoordinatorDecision {
  std::variant<AppendRecord, SendView, DetectedFault> what;
  std::string reason;
};
using CoordinatorDecisions = std::vector<CoordinatorDecision>;

class Coordinator {
 public:
  // A new term, which the first decision writes down.
  Coordinator(
      const CoordinatorOptions& options,
      History history,
      Instant now,
      CoordinatorDecisions& decisions);

  // REQUIRES: lives of one replica are heard in the order of their connections;
  // what a former connection still brings is dropped.
  CoordinatorDecisions received(const Report& report, Instant now);
  // The connection ended, or nothing was heard for too long, or it hangs.
  CoordinatorDecisions lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // It is there and does nothing: it is left out until its progress moves, and
  // still counts as one that holds what it holds.
  CoordinatorDecisions hangs(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // What one of them has sent the other one under the epoch has not come. Decides
  // nothing by itself: rings to come avoid it when it is so again.
  void link_fails(ReplicaId one, ReplicaId other);
  CoordinatorDecisions tick(Instant now);
  // When tick() may have something to decide; none: never, by itself. Later than
  // `now`.
  std::optional<Instant> next_tick(Instant now) const;

  enum class Phase {
    kForming,  // Waits for replicas.
    kJoining,  // Members connect to each other.
    kRunning,  // They train.
  };
  Phase phase() const { return phase_; }
  const History& history() const { return history_; }
  // Why the last epoch ended, or the coordinator began.
  const std::string& why() const { return epoch_ended_because_; }
  // Why nothing can be committed until somebody has looked; empty: nothing.
  const std::string& complaint() const {
    return complaint_.empty() ? undecided_digests_ : complaint_;
  }
  // Whether it takes this life of the replica for one that is there.
  bool counts(ReplicaId replica, Incarnation incarnation) const;
  // It is the replica's, not that of a former life, another run or configuration:
  // those hear so, and count for nothing.
  bool has_place(const Report& report) const { return refusal(report).empty(); }
  // A later one of this life was heard already, and answered.
  bool is_overtaken(const Report& report) const;

 private:
  friend class ModelAccess;  // The model checker's.
  struct ReplicaEntry {
    Report report;
    bool connected = false;
    bool hangs = false;
    // What it says of a state is not what most say. Until it says something else
    // it is taken for one that holds nothing.
    std::optional<StateDigest> wrong{};
    int bad_gradients = 0;  // Steps in a row.
    // It failed its peers: when it may train again, and how long next time.
    Instant out_until{};
    Duration backoff{};
    Instant member_since{};
    bool operator==(const ReplicaEntry&) const = default;
  };
  // In how many epochs; whoever says so, one death is one.
  struct SuspicionCount {
    int epochs = 0;
    Epoch last;
  };
  // Of the attempt under way.
  struct Votes {
    std::size_t count = 0;
    std::uint64_t gradients = 0;
    std::string different;            // Who has another sum.
    std::vector<ReplicaId> culprits;  // If most agree.
  };

  // Questions.
  std::string refusal(const Report& report) const;
  std::string refusal_of_loaded(const Report& report) const;
  bool is_foreign(const StateId& state) const;
  bool is_member(ReplicaId replica) const;
  bool is_out(const ReplicaEntry& known, Instant now) const;
  bool can_train(const ReplicaEntry& known, const StateId& base, Instant now) const;
  std::optional<std::int64_t> lag(const ReplicaEntry& known) const;
  bool can_join(const ReplicaEntry& known, Instant now) const;
  bool has_bad_gradients(const Member& member) const;
  bool holds_canonical(const ReplicaEntry& known) const;
  bool will_hold_canonical(ReplicaId replica, const ReplicaEntry& known) const;
  bool somebody_holds() const;
  bool somebody_will_hold() const;
  bool waits_for_members(Instant now) const;
  Duration hold_time() const;
  std::optional<StateId> newest_held() const;
  std::vector<Member> next_members(const StateId& base, Instant now) const;
  Attempt attempt() const;
  Votes votes() const;
  int replicas_min() const;
  // Why the epoch, or the planned one, cannot go on; empty: it can.
  std::string broken() const;
  std::string plan_broken() const;
  bool plan_is_ready(Instant now) const;

  // Rules, until none has anything to decide.
  void advance(Instant now, CoordinatorDecisions& decisions);
  bool form(Instant now, CoordinatorDecisions& decisions);
  bool roll_back(Instant now, CoordinatorDecisions& decisions);
  bool start(Instant now, CoordinatorDecisions& decisions);
  bool commit(Instant now, CoordinatorDecisions& decisions);
  bool plan(Instant now, CoordinatorDecisions& decisions);

  // What they do.
  void salvage(const std::string& reason, Instant now, CoordinatorDecisions& decisions);
  void commit_step(
      std::uint64_t gradients,
      const std::string& reason,
      Instant now,
      CoordinatorDecisions& decisions);
  std::vector<Member> members_of_plan(const SampleSet& consumed, Instant now);
  void begin_epoch(
      const Epoch& epoch,
      const StateId& base,
      std::vector<Member> members,
      const std::string& reason,
      CoordinatorDecisions& decisions);
  void close_epoch(
      const std::string& reason,
      Instant now,
      Duration settle,
      CoordinatorDecisions& decisions);
  CoordinatorDecisions remove_from_epoch(ReplicaId replica, const std::string& how, Instant now);
  void penalise(ReplicaId replica, Instant now);
  void count_suspicion(const Report& report, Instant now);
  std::vector<ReplicaId> unjoined_members(
      const std::vector<Member>& members, const Epoch& epoch) const;
  bool suspect_link(
      const std::vector<Member>& ring,
      const std::vector<ReplicaId>& late,
      const Epoch& epoch);
  bool drop_plan(Instant now, CoordinatorDecisions& decisions);
  void count_bad_gradients(
      const Report& report, Instant now, CoordinatorDecisions& decisions);
  bool is_undecided(ReplicaId replica) const;
  void compare_digests(Instant now, CoordinatorDecisions& decisions);
  void blame_for_sum(const Votes& votes, Instant now, CoordinatorDecisions& decisions);
  void stop_run(const std::string& why, CoordinatorDecisions& decisions);
  void end_run(CoordinatorDecisions& decisions);
  void assign_samples(std::vector<Member>& members, const SampleSet& taken) const;
  SampleRange trained_before(const StateId& base) const;
  Epoch next_epoch();
  void write(Record record, const std::string& reason, CoordinatorDecisions& decisions);
  RunView view() const;
  void tell(
      ReplicaId replica, const std::string& reason, CoordinatorDecisions& decisions) const;
  void tell_all(const std::string& reason, CoordinatorDecisions& decisions) const;

  CoordinatorOptions options_;
  History history_;
  Phase phase_ = Phase::kForming;
  std::map<ReplicaId, ReplicaEntry> replicas_;
  std::optional<PlannedEpoch> planned_;
  std::uint64_t number_ = 0;  // Of epochs, the last that was given out.
  std::uint64_t config_ = 0;  // That replicas must have.
  std::string epoch_ended_because_;
  std::string complaint_;
  std::string undecided_digests_;  // Why nobody knows whose bits are right; empty: they are.
  std::vector<ReplicaId> undecided_replicas_;  // Between whom.
  LinkFaults link_faults_;
  Instant form_at_{};          // Not before.
  Instant start_at_{};         // With fewer than replicas_start.
  Instant reconnect_until_{};  // Members of the last epoch may be late.
  Instant join_until_{};       // While joining.
  Instant plan_until_{};       // While planned.
  // Since the last commit.
  std::map<ReplicaId, SuspicionCount> suspected_;
  int ambiguous_sums_ = 0;  // That differ, and no majority says whose is wrong.
  int steps_without_gradients_ = 0;          // All gradients of a step were bad.
  std::optional<StateId> finished_;       // A replica's program ended with it.
  std::optional<Instant> too_few_since_;  // To form an epoch.
  std::optional<Instant> first_vote_;     // Of the attempt under way.
  std::optional<Instant> lost_since_;     // No holder of the canonical state.
};

}  // namespace sherd::ft
