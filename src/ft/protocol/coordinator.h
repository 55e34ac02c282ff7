// SPDX-License-Identifier: Apache-2.0
//
// Coordinator decides who trains together and which steps are committed. It is a pure state
// machine: reports, losses and the time come in, decisions go out, each with its reason. Its caller
// appends a record to the log on the disk before it carries out the decisions that follow it; the
// log is all that outlives the machine. Thread rule: one thread; a value, which the model checker
// copies.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/history.h"
#include "ft/protocol/link_faults.h"
#include "ft/protocol/member_order.h"
#include "ft/protocol/messages.h"
#include "ft/protocol/slow_links.h"

namespace sherd::ft {

struct Recovery;

struct CoordinatorOptions {
  // ---- behaviour ----

  // The number of the run that a new log begins: random, not 0.
  std::uint64_t run = 1;
  // No step is committed by fewer.
  int replicas_min = 1;
  // Replicas are numbered below it.
  ReplicaId replicas_max = 4096;
  // Each replica trains so many in each step; a step has fewer while replicas are missing.
  std::int64_t samples_per_replica = 1;
  // All replicas together train so many, whoever is missing: each takes its share, in multiples of
  // what its ranks can divide. 0: samples_per_replica counts.
  std::int64_t samples_in_all = 0;
  std::int64_t samples_multiple = 1;
  // A new log goes on with the run that its replicas remember, once all that were ever in it have
  // answered; where none has heard of a run and replicas_start are there, it may begin with a state
  // that they have loaded from a disk.
  bool recovers = false;
  // The first epoch of all waits for so many replicas, or so long.
  int replicas_start = 1;
  Duration start_timeout = std::chrono::seconds(60);
  // How long the only holders of the last step may be away.
  Duration hold_time = std::chrono::seconds(60);

  // ---- performance ----

  // Failures that come together within it make one epoch, and so long votes of an epoch that ends
  // are waited for.
  Duration settle = std::chrono::milliseconds(30);
  // Members that have not joined a new epoch by then, or still lack the last commit, are left out.
  // Longer than rings try to connect (RingOptions::connect_timeout), which tells whose fault it is.
  Duration join_timeout = std::chrono::seconds(1);
  // After a start, the members of the last epoch have so long to come back.
  Duration reconnect_timeout = std::chrono::seconds(1);
  // So long after the first vote, the votes that are there commit.
  Duration vote_timeout = std::chrono::seconds(2);
  // How long a replica stays out that failed its peers for the second time, doubled each time.
  Duration backoff = std::chrono::seconds(1);
  Duration backoff_max = std::chrono::seconds(60);
  // Members change their order for links that are slow so often at most.
  Duration reorder_interval = std::chrono::seconds(30);
  // The longest time between two tries to connect one that the others cannot reach, which costs them
  // nothing.
  Duration rejoin_max = std::chrono::seconds(4);
};

struct AppendRecord {
  Record record;
};
struct SendView {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // All who are told the same share it. Not null.
  std::shared_ptr<const RunView> view;
};
// A fault that the rules have found, for the status page; the decision's reason says how.
struct DetectedFault {
  std::string counter;  // The metric that counts such faults: [a-z_]+.
  std::string culprit;
};
struct CoordinatorDecision {
  std::variant<AppendRecord, SendView, DetectedFault> what;
  std::string reason;
};
using CoordinatorDecisions = std::vector<CoordinatorDecision>;

class Coordinator {
 public:
  // Begins a new term. `decisions` receives the record of it.
  Coordinator(
      const CoordinatorOptions& options,
      History history,
      Instant now,
      CoordinatorDecisions& decisions);

  // Reports that have come together: the rules, which look at all replicas, are applied once, after
  // them. REQUIRES: reports of one replica come in the order of its connections; those that a former
  // connection still brings are dropped.
  CoordinatorDecisions received(std::span<const Report> reports, Instant now);
  CoordinatorDecisions received(const Report& report, Instant now) {
    return received(std::span(&report, 1), now);
  }
  // Its connection has ended, or nothing was heard of it for too long.
  CoordinatorDecisions lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // It is connected and makes no progress: it is left out until it does, but still counts as a
  // holder of its state.
  CoordinatorDecisions hangs(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // Bytes that were sent over these links in this epoch have not arrived. The epoch ends, the next
  // one is without the culprits, and later rings avoid the links.
  CoordinatorDecisions links_fail(
      const std::vector<BrokenLink>& links,
      const std::string& reason,
      Instant now);
  CoordinatorDecisions tick(Instant now);
  // The next time at which tick() may decide something; none: never by itself. It may have passed:
  // the rules have not been applied since.
  std::optional<Instant> next_tick() const;

  enum class Phase {
    kForming,  // Waits for replicas.
    kJoining,  // Members connect to each other.
    kRunning,  // They train.
  };
  Phase phase() const { return phase_; }
  const History& history() const { return history_; }
  // Why nothing can be committed until an operator has looked; empty: it can.
  const std::string& complaint() const {
    return !complaint_.empty() ? complaint_
        : !lost_log_.empty()   ? lost_log_
                               : undecided_digests_;
  }
  // Whether this incarnation is current and connected.
  bool counts(ReplicaId replica, Incarnation incarnation) const;
  // False for a report of a former incarnation, another run or another configuration: its sender is
  // fenced and counts for nothing.
  bool has_place(const Report& report) const { return refusal(report).empty(); }
  // A later report of this incarnation was already received.
  bool is_overtaken(const Report& report) const;

 private:
  friend class ModelAccess;  // The model checker's.
  struct ReplicaEntry {
    Report report;
    bool connected = false;
    bool hangs = false;
    // Its digest, if it differs from most. Until it reports another one it is taken for a replica
    // that holds nothing.
    std::optional<StateDigest> wrong{};
    int bad_gradients = 0;  // Steps in a row.
    // After it failed its peers: when it may train again, and the next back-off.
    Instant out_until{};
    Duration backoff{};
    // How many epochs it could not be connected for since it last had a part in a commit.
    int failed_joins = 0;
    Instant member_since{};
    bool operator==(const ReplicaEntry&) const = default;
  };
  // The votes for the attempt under way.
  struct Votes {
    std::size_t count = 0;
    std::uint64_t gradients = 0;
    std::string different;            // Who has another sum; empty: nobody.
    std::vector<ReplicaId> culprits;  // Those with another sum than most.
  };

  // ---- questions ----

  std::string refusal(const Report& report) const;
  std::string refusal_of_loaded(const Report& report) const;
  bool is_foreign(const StateId& state) const;
  bool is_recovering() const;
  bool remembers_a_run(const Report& report) const;
  bool is_member(ReplicaId replica) const;
  bool repeats(const Report& report, const ReplicaEntry& known) const;
  bool waits_for_others(const Report& report);
  void look_for_lost_log();
  bool take_quietly(const Report& report, ReplicaEntry& known);
  bool all_have_voted();
  bool all_hold_canonical();
  bool is_out(const ReplicaEntry& known) const;
  bool can_train(const ReplicaEntry& known, const StateId& base) const;
  std::optional<std::int64_t> lag(const ReplicaEntry& known) const;
  bool can_join(const ReplicaEntry& known) const;
  bool has_bad_gradients(const Member& member) const;
  bool holds_canonical(const ReplicaEntry& known) const;
  bool will_hold_canonical(ReplicaId replica, const ReplicaEntry& known) const;
  bool somebody_holds() const;
  bool somebody_will_hold() const;
  bool waits_for_members() const;
  Duration hold_time() const;
  std::optional<StateId> newest_held() const;
  std::vector<Member> next_members(const StateId& base) const;
  Attempt attempt() const;
  Votes votes() const;
  int replicas_min() const;
  // Members that are connected and can be expected to vote.
  std::size_t live_members() const;
  // Votes that commit without the rest: while more than one member lives, more than one holds.
  std::size_t votes_needed() const;
  bool can_salvage() const;
  bool awaits_votes();
  // Why the epoch or the planned one cannot go on; empty: it can.
  std::string broken() const;
  std::string plan_broken() const;
  bool plan_is_ready() const;

  // ---- rules: advance() applies them until none decides anything ----

  void advance();
  void apply_rules();
  bool are_too_few(const std::vector<Member>& members);
  bool form();
  bool roll_back();
  bool start();
  bool commit();
  bool plan();

  // ---- effects of the rules ----

  void end_broken_epoch();
  void salvage(const std::string& reason);
  void commit_step(std::uint64_t gradients, const std::string& reason);
  std::vector<Member> members_of_plan(const SampleSet& consumed);
  void begin_epoch(
      const Epoch& epoch,
      const StateId& base,
      std::vector<Member> members,
      const std::string& reason);
  void close_epoch(const std::string& reason, Duration settle);
  // Whether the rules are to look at what it says.
  bool take(const Report& report);
  void hear_memory(const Report& report);
  std::string recover();
  void go_on_from(const Recovery& recovery);
  void remove_from_epoch(ReplicaId replica, const std::string& how);
  void penalise(ReplicaId replica);
  void keep_out(ReplicaEntry& known, Instant until);
  void count_suspicion(const Report& report);
  std::vector<ReplicaId> unjoined_members(
      const std::vector<Member>& members, const Epoch& epoch) const;
  void accuse(const BrokenLink& link, const Epoch& epoch);
  void forget_broken_links(ReplicaId replica);
  // Those that members accuse in the planned epoch, or that have not joined it in time.
  std::vector<BrokenLink> broken_links_of_plan() const;
  std::set<ReplicaId> culprits_of_plan();
  // `why` for the first time.
  void postpone(ReplicaId replica, Duration wait, const std::string& why);
  Duration rejoin_wait(ReplicaId replica) const;
  void leave_out_culprits();
  void judge_links();
  LinkQualityOf link_quality() const;
  std::vector<Member> in_order(std::vector<Member> members) const;
  bool plan_other_order();
  bool drop_plan();
  // Who failed to be connected comes in alone.
  std::optional<ReplicaId> next_suspect() const;
  void count_bad_gradients(const Report& report);
  bool is_undecided(ReplicaId replica) const;
  void compare_digests();
  void blame_for_sum(const Votes& votes);
  void stop_run(const std::string& why);
  void end_run();
  void assign_samples(
      std::vector<Member>& members, const SampleSet& taken) const;
  SampleRange trained_before(const StateId& base) const;
  Epoch next_epoch();
  void write(Record record, const std::string& reason);
  RunView view() const;
  void look_again();
  void tell(ReplicaId replica, const std::string& reason);
  void fence(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& why,
      bool ended);
  void tell_all(const std::string& reason);

  CoordinatorOptions options_;
  History history_;
  std::vector<ReplicaId> member_ids_;  // Of history_.members, ascending.
  Phase phase_ = Phase::kForming;
  std::map<ReplicaId, ReplicaEntry> replicas_;
  std::optional<PlannedEpoch> planned_;
  std::uint64_t number_ = 0;  // The last epoch's.
  std::uint64_t config_ = 0;  // What replicas must have; 0: unknown.
  std::string epoch_ended_because_;
  std::string complaint_;
  // Replicas of another run that are connected: incarnation and run.
  std::map<ReplicaId, std::pair<Incarnation, std::uint64_t>> other_runs_;
  // The last reports of lives that have heard of the run whose log is lost.
  std::map<std::pair<ReplicaId, Incarnation>, Report> memories_;
  std::string lost_log_;  // Why a new run does not begin; empty: it may.
  std::string
      undecided_digests_;  // Why nobody knows whose bits are right; empty: they are.
  std::vector<ReplicaId> undecided_replicas_;  // Between whom.
  LinkFaults link_faults_;
  SlowLinks slow_links_;
  Instant reorder_at_{};  // No other order is planned before.
  // Since the last epoch began to run. No new epoch has their culprits.
  std::vector<BrokenLink> broken_links_;
  Epoch started_;  // The last one that all had joined.
  // Why the running epoch ends, while votes are waited for.
  std::string broken_because_;
  std::optional<Instant> broken_since_;
  Instant form_at_{};          // No epoch is formed before.
  Instant start_at_{};         // Fewer than replicas_start may begin.
  Instant reconnect_until_{};  // Members of the last epoch may be late.
  Instant join_until_{};       // The end of kJoining.
  Instant plan_until_{};       // The planned epoch is joined by then.
  // Suspicions since the last commit.
  std::map<ReplicaId, SuspicionCount> suspected_;
  int ambiguous_sums_ = 0;  // That differ, and no majority says whose is wrong.
  int steps_without_gradients_ = 0;       // All gradients of a step were bad.
  std::optional<StateId> finished_;       // A replica's program ended with it.
  std::optional<Instant> too_few_since_;  // To form an epoch.
  std::optional<Instant> first_vote_;     // For the attempt under way.
  std::optional<Instant> lost_since_;     // Nobody holds the canonical state.
  Instant out_until_max_{};               // Nobody's out_until is later.
  // Members by their places: where to look first for one that has not voted, or
  // does not hold the canonical state. They save time and decide nothing.
  std::size_t look_for_vote_at_ = 0;
  std::size_t look_for_state_at_ = 0;
  // What is told to all; null: something has changed since it was made.
  std::shared_ptr<const RunView> view_;
  Instant rules_at_{};  // When the rules were last applied.
  // Only during a call: its time, whose reports are not answered yet, and what it has decided so far.
  Instant now_{};
  std::vector<ReplicaId> to_answer_;
  CoordinatorDecisions decisions_;
};

}  // namespace sherd::ft
