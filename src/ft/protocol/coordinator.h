// SPDX-License-Identifier: Apache-2.0
//
// Coordinator decides who trains together and which steps are committed. It is a pure state
// machine: reports, losses and the time come in, decisions go out, each with its reason. Its caller
// appends each record to the log on disk before it carries out the decisions that follow the
// record; only the log outlives the machine. Thread rule: one thread; a value, which the model
// checker copies.
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
#include "ft/protocol/link_history.h"
#include "ft/protocol/member_order.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct Recovery;

struct CoordinatorOptions {
  // ---- behaviour ----

  // The number of the run that a new log begins: random, not 0.
  std::uint64_t run = 1;
  // A step is never committed with fewer replicas than this.
  int replicas_min = 1;
  // As in CoordinateOptions (sherd/ft/coordinator.h), where samples_in_all is global_batch.
  std::int64_t samples_per_replica = 1;
  std::int64_t samples_in_all = 0;
  std::int64_t samples_multiple = 1;
  // As recover_from_replicas and run_has_ended there.
  bool recovers = false;
  bool ended = false;
  // The very first epoch waits for this many replicas, or for this long.
  int replicas_start = 1;
  Duration start_timeout = std::chrono::seconds(60);
  // How long the only holders of the last step may be away before the run goes back to an older
  // state.
  Duration hold_time = std::chrono::seconds(60);

  // ---- performance ----

  // Failures within this time lead to only one new epoch. An epoch that ends also waits this long
  // for votes.
  Duration settle = std::chrono::milliseconds(30);
  // Members that have not joined a new epoch by then, or still lack the last commit, are left out.
  // It is longer than the time a ring tries to connect (RingOptions::connect_timeout), so that the
  // members can first report which link failed.
  Duration join_timeout = std::chrono::seconds(1);
  // How long after a start the members of the last epoch have to reconnect.
  Duration reconnect_timeout = std::chrono::seconds(1);
  // The votes that have arrived this long after the first one may commit without the rest.
  Duration vote_timeout = std::chrono::seconds(2);
  // How long a replica stays out after it has failed its peers for the second time. The time
  // doubles with each further failure.
  Duration backoff = std::chrono::seconds(1);
  Duration backoff_max = std::chrono::seconds(60);
};

struct SendView {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  // Shared by all replicas that receive the same view. Never null.
  std::shared_ptr<const RunView> view;
};
// A fault that the rules have found, for the status page. The decision's reason has the details.
struct DetectedFault {
  std::string counter;  // The metric that counts such faults; matches [a-z_]+.
  std::string culprit;
};
// A record is appended to the log.
struct CoordinatorDecision {
  std::variant<Record, SendView, DetectedFault> what;
  std::string reason;
};
using CoordinatorDecisions = std::vector<CoordinatorDecision>;

class Coordinator {
 public:
  // Begins a new term and adds its record to `decisions`.
  Coordinator(
      const CoordinatorOptions& options,
      History history,
      Instant now,
      CoordinatorDecisions& decisions);

  // Takes reports that arrived together. The rules, which look at all replicas, are applied once
  // after all of them. REQUIRES: the reports of one replica are in the order of its connections.
  // Late reports of a former connection are dropped.
  CoordinatorDecisions received(std::span<const Report> reports, Instant now);
  CoordinatorDecisions received(const Report& report, Instant now) {
    return received(std::span(&report, 1), now);
  }
  // The replica's connection has ended, or it has been silent for too long.
  CoordinatorDecisions lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // The replica is connected but makes no progress. It is left out until it does, but still counts
  // as a holder of its state.
  CoordinatorDecisions hangs(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  // Bytes that were sent over these links in this epoch have not arrived. The epoch ends, the next
  // one leaves the culprits out, and later rings avoid the links.
  CoordinatorDecisions links_fail(
      const std::vector<BrokenLink>& links,
      const std::string& reason,
      Instant now);
  CoordinatorDecisions tick(Instant now);
  // The next time at which tick() may decide something, or nullopt if nothing depends on time. It
  // may be in the past when the rules have not been applied since.
  std::optional<Instant> next_tick() const;

  // kClosed: it waits for the members of the next epoch.
  EpochStage stage() const { return stage_; }
  const History& history() const { return history_; }
  // Why nothing can be committed until an operator intervenes; empty if commits are possible.
  const std::string& complaint() const {
    return !complaint_.empty() ? complaint_
        : !lost_log_.empty()   ? lost_log_
                               : undecided_digests_;
  }
  // Whether this incarnation is current and connected.
  bool counts(ReplicaId replica, Incarnation incarnation) const;
  // False if the report is of a former incarnation, another run or another configuration. Its
  // sender is then fenced and counts for nothing.
  bool has_place(const Report& report) const { return refusal(report).empty(); }
  // Whether a later report of the same incarnation was already received.
  bool is_overtaken(const Report& report) const;

 private:
  friend class ModelAccess;  // For the model checker.
  struct ReplicaEntry {
    Report report;
    bool connected = false;
    bool hangs = false;
    // The replica's digest if it differs from those of most replicas. Until the replica reports
    // another digest, it is treated as one that holds nothing.
    std::optional<StateDigest> wrong{};
    int bad_gradients = 0;  // How many steps in a row.
    // Set after the replica has failed its peers: when it may train again, and its next back-off.
    Instant out_until{};
    Duration backoff{};
    // How many epochs it could not be connected for since it last took part in a commit.
    int failed_joins = 0;
    Instant member_since{};
    bool operator==(const ReplicaEntry&) const = default;
  };
  // The votes for the attempt under way.
  struct Votes {
    std::size_t count = 0;
    std::uint64_t gradients = 0;
    // Says who has a different sum; empty if nobody has.
    std::string different;
    // The members whose sum differs from that of most.
    std::vector<ReplicaId> culprits;
  };

  // ---- questions ----

  std::string refusal(const Report& report) const;
  std::string refusal_of_replaced(const Report& report) const;
  std::string refusal_of_loaded(const Report& report) const;
  bool is_foreign(const StateId& state) const;
  bool is_recovering() const;
  bool remembers_a_run(const Report& report) const;
  std::int64_t connected() const;
  bool is_member(ReplicaId replica) const;
  bool repeats(const Report& report, const ReplicaEntry& known) const;
  bool waits_for_others(const Report& report);
  void look_for_lost_log();
  bool take_quietly(const Report& report, ReplicaEntry& known);
  // Begins at `look_at`, where the last search ended, so that all reports of a step together look
  // at each member only a few times.
  template <typename Predicate>
  bool all_members(std::size_t& look_at, const Predicate& holds) const;
  bool all_have_voted();
  bool all_hold_canonical();
  bool is_out(const ReplicaEntry& known) const;
  bool can_train(const ReplicaEntry& known, const StateId& base) const;
  std::optional<std::int64_t> lag(const ReplicaEntry& known) const;
  bool can_join(const ReplicaEntry& known) const;
  bool has_bad_gradients(const Member& member) const;
  bool holds_canonical(const ReplicaEntry& known) const;
  bool somebody_holds() const;
  bool has_ended() const;
  bool had_ended() const;
  bool somebody_will_hold() const;
  bool waits_for_members() const;
  Duration hold_time() const;
  std::optional<StateId> newest_held() const;
  std::vector<Member> next_members(const StateId& base) const;
  Attempt attempt() const;
  Votes votes() const;
  int replicas_min() const;
  // The members that are connected and can be expected to vote.
  std::size_t live_members() const;
  // How many votes commit without the rest. It is at least 2 while more than one member lives, so
  // that more than one replica holds the step.
  std::size_t votes_needed() const;
  bool can_salvage() const;
  bool awaits_votes();
  // Why the current epoch or the planned one cannot go on; empty if it can.
  std::string broken() const;
  std::string plan_broken() const;
  bool plan_is_ready() const;

  // ---- rules: advance() applies them until none of them decides anything ----

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
  // Whether the rules have to look at the report.
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
  // The links that members report as broken in the planned epoch, and those of members that have
  // not joined it in time.
  std::vector<BrokenLink> broken_links_of_plan() const;
  std::set<ReplicaId> culprits_of_plan();
  // `why` is the reason if this is the first time.
  void postpone(ReplicaId replica, Duration wait, const std::string& why);
  Duration rejoin_wait(ReplicaId replica) const;
  void leave_out_culprits();
  void judge_links();
  LinkQualityOf link_quality() const;
  std::vector<Member> in_order(std::vector<Member> members) const;
  void begin_plan(std::vector<Member> members, const std::string& reason);
  bool plan_other_order();
  bool drop_plan();
  // A replica that could not be connected comes in without other newcomers.
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
  void notice(
      const char* counter, const std::string& culprit, const std::string& why);
  RunView view() const;
  void look_again();
  void send(
      ReplicaId replica,
      Incarnation incarnation,
      RunView view,
      const std::string& reason);
  void tell(ReplicaId replica, const std::string& reason);
  void fence(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& why,
      bool ended);
  void tell_all(const std::string& reason);

  CoordinatorOptions options_;
  History history_;
  // The ids of history_.members, ascending.
  std::vector<ReplicaId> member_ids_;
  EpochStage stage_ = EpochStage::kClosed;
  std::map<ReplicaId, ReplicaEntry> replicas_;
  std::optional<EpochMembers> planned_;
  std::uint64_t number_ = 0;  // The number of the last epoch.
  // The configuration that replicas must have; 0 if unknown.
  std::uint64_t config_ = 0;
  std::string epoch_ended_because_;
  std::string complaint_;
  // Connected replicas that belong to another run, each with its incarnation and run.
  std::map<ReplicaId, std::pair<Incarnation, std::uint64_t>> other_runs_;
  // The last reports of incarnations that have heard of the run whose log is lost.
  std::map<std::pair<ReplicaId, Incarnation>, Report> memories_;
  std::string lost_log_;  // Why a new run may not begin; empty if it may.
  // Why nobody can tell which bits are right; empty if they are right.
  std::string undecided_digests_;
  // The replicas whose digests differ.
  std::vector<ReplicaId> undecided_replicas_;
  LinkHistory link_history_;
  Instant reorder_at_{};  // No other order is planned before this time.
  // The links found broken since the last epoch began to run. New epochs leave their culprits out.
  std::vector<BrokenLink> broken_links_;
  Epoch started_;  // The last epoch that all members had joined.
  // Why the running epoch ends, while it still waits for votes; empty otherwise.
  std::string broken_because_;
  std::optional<Instant> broken_since_;
  Instant form_at_{};   // No epoch is formed before this time.
  Instant start_at_{};  // Fewer than replicas_start may begin after this time.
  // Members of the last epoch may be late until then.
  Instant reconnect_until_{};
  Instant join_until_{};  // The deadline of kJoining.
  Instant plan_until_{};  // The deadline for joining the planned epoch.
  // Suspicions since the last commit.
  std::map<ReplicaId, SuspicionCount> suspected_;
  // How often sums differed and no majority told which is wrong.
  int ambiguous_sums_ = 0;
  // How often all gradients of the step were bad.
  int steps_without_gradients_ = 0;
  // The state with which programs had ended before this term.
  std::optional<StateId> ended_before_;
  // The last state with which replicas were told that the run has ended.
  std::optional<StateId> told_end_;
  // Since when there are too few replicas to form an epoch.
  std::optional<Instant> too_few_since_;
  // The first vote for the attempt under way.
  std::optional<Instant> first_vote_;
  // Since when nobody holds the canonical state.
  std::optional<Instant> lost_since_;
  Instant out_until_max_{};  // The latest out_until of all replicas.
  // Where among the members to look first for one that has not voted, or that does not hold the
  // canonical state. They only save time and decide nothing.
  std::size_t look_for_vote_at_ = 0;
  std::size_t look_for_state_at_ = 0;
  // The view that is sent to all; null if something has changed since it was made.
  std::shared_ptr<const RunView> view_;
  Instant rules_at_{};  // When the rules were last applied.
  // Only set during a call: the time of the call, the replicas whose reports are not answered yet,
  // and what has been decided so far.
  Instant now_{};
  std::vector<ReplicaId> to_answer_;
  CoordinatorDecisions decisions_;
};

}  // namespace sherd::ft
