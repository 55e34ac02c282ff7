// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's inputs and outputs, and the order in which it applies its rules.
#include "ft/protocol/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

// How many commits a view carries. A replica that lacks no more than these catches up by fetching
// their sums.
constexpr std::size_t kRecent = 8;

// What is added to steps and terms from outside must not overflow.
constexpr std::int64_t kStepMax = std::int64_t{1} << 60U;
constexpr std::uint64_t kTermMax = std::uint64_t{1} << 60U;

bool is_of_a_run(const StateId& state) {
  return state.step >= 0 && state.step <= kStepMax;
}

bool is_of_a_run(const RunView& memory) {
  return memory.term <= kTermMax && memory.epoch.term <= kTermMax &&
      is_of_a_run(memory.canonical) &&
      std::ranges::all_of(memory.recent, [](const Commit& one) {
           return is_of_a_run(one.base) && is_of_a_run(one.result);
         });
}

}  // namespace

Coordinator::Coordinator(
    const CoordinatorOptions& options,
    History history,
    Instant now,
    CoordinatorDecisions& decisions)
    : options_(options),
      history_(std::move(history)),
      number_(history_.epoch.number),
      config_(history_.config),
      epoch_ended_because_("the coordinator has started"),
      started_(history_.epoch),
      form_at_(now + options.settle),
      start_at_(now + options.start_timeout),
      reconnect_until_(now + options.reconnect_timeout),
      ended_before_(options.ended ? history_.canonical : std::nullopt),
      rules_at_(now),
      now_(now) {
  look_again();
  const auto run = history_.run == 0 ? options.run : history_.run;
  write(TermRecord{history_.term + 1, run}, epoch_ended_because_);
  decisions = std::exchange(decisions_, {});
}

// ---- what comes in ----

// Whether the report says nothing new that a rule looks at, except perhaps what the replica holds
// and votes for.
bool Coordinator::repeats(
    const Report& report, const ReplicaEntry& known) const {
  const auto& last = known.report;
  // hold_time() depends on whether a replica is fetching.
  const bool fetches = report.progress.activity == Activity::kFetching;
  const bool fetched = last.progress.activity == Activity::kFetching;
  return known.connected && !known.hangs && !known.wrong && !report.finished &&
      report.incarnation == last.incarnation && report.run == last.run &&
      report.config == last.config && report.joined == last.joined &&
      report.suspicion == last.suspicion && report.digest == last.digest &&
      report.bad_gradients == last.bad_gradients &&
      report.leaving == last.leaving && report.finished == last.finished &&
      report.addresses == last.addresses && fetches == fetched;
}

// Whether a member votes for the attempt under way, or holds what was committed, while others do
// not yet. No rule decides anything until all of them do or some time has passed, and tick()
// handles the time.
bool Coordinator::waits_for_others(const Report& report) {
  // An epoch that ends waits only for the votes of members that live, so fewer votes may decide.
  if (stage_ != EpochStage::kRunning || !complaint().empty() ||
      !broken_because_.empty() || report.held != history_.canonical ||
      !is_member(report.replica)) {
    return false;
  }
  if (!report.vote) {
    return !all_hold_canonical();
  }
  if (report.vote->attempt != attempt() ||
      report.vote->base != history_.canonical || all_have_voted()) {
    return false;
  }
  first_vote_ = first_vote_.value_or(now_);
  return true;
}

// Takes a report that decides nothing. With many replicas nearly all reports are like that, so this
// must neither look at all replicas nor make a view: the others learn what the sender holds from
// the next view that the rules make, at least once a step. Returns false if the rules have to look
// at the report.
bool Coordinator::take_quietly(const Report& report, ReplicaEntry& known) {
  if (!repeats(report, known)) {
    return false;
  }
  const bool holds_the_same = report.held == known.report.held;
  const bool is_heartbeat = holds_the_same && report.vote == known.report.vote;
  known.report = report;
  return is_heartbeat || waits_for_others(report);
}

// Why the sender of the report is fenced; empty if it is not.
std::string Coordinator::refusal(const Report& report) const {
  // 0 stands for what is unknown.
  if (report.incarnation == 0 || report.config == 0) {
    return "expected a life and a configuration other than 0, found 0";
  }
  if ((report.held && !is_of_a_run(*report.held)) ||
      (report.remembers && !is_of_a_run(*report.remembers))) {
    return "expected steps and terms of a run, found others";
  }
  if (report.replica >= kReplicasMax) {
    return str(kNumberTooHigh, kReplicasMax, ", found ", report.replica);
  }
  if (remembers_a_run(report)) {
    return {};
  }
  if (report.run != 0 && report.run != history_.run) {
    return str(
        "this is run ", history_.run, ", the replica is of run ", report.run);
  }
  if (config_ != 0 && report.config != config_) {
    return connected() > 0
        ? str(kOtherConfiguration, config_, " of the other replicas, found ",
              report.config)
        : str(kOtherConfiguration, config_, " of the run in the log, found ",
              report.config,
              ": use the options of that run, or another log (--run-dir) with "
              "--recover-from-replicas");
  }
  const auto lives = history_.lives.find(report.replica);
  // A replica that has heard of the run was in its log, unless the log was lost. So its incarnation
  // is older than one that has answered, or than one that has not heard of anything yet. But if it
  // knows more than the log, an older copy of the log was put back.
  const auto knows_more = [&] {
    return report.held && is_foreign(*report.held);
  };
  if (lives != history_.lives.end() &&
      (lives->second.former.contains(report.incarnation) ||
       (report.run != 0 && lives->second.current != 0 &&
        lives->second.current != report.incarnation && !knows_more()))) {
    return refusal_of_replaced(report);
  }
  return refusal_of_loaded(report);
}

// A process that lives on another host than its replacement was not restarted: somebody has given
// one number to both hosts.
std::string Coordinator::refusal_of_replaced(const Report& report) const {
  const auto how =
      str("incarnation ", report.incarnation, " of replica ", report.replica,
          " was replaced by a newer one");
  const auto known = replicas_.find(report.replica);
  if (known == replicas_.end() || report.addresses.empty() ||
      known->second.report.addresses.empty()) {
    return how;
  }
  const auto host = report.addresses.front().host;
  const auto newer = known->second.report.addresses.front().host;
  return host == newer
      ? how
      : str(kNumberOnTwoHosts, report.replica,
            " on one host only, found it on ", host, " and ", newer, ": ", how);
}

// Whether the state was neither committed in this log nor is older than its first state.
bool Coordinator::is_foreign(const StateId& state) const {
  const auto first =
      history_.past.empty() ? 0 : history_.past.front().state.step;
  return state.step > first && !history_.knows(state);
}

// A replica that has not heard from a coordinator yet has its state from a disk.
std::string Coordinator::refusal_of_loaded(const Report& report) const {
  if (report.run != 0 || !report.held || !is_foreign(*report.held)) {
    return {};
  }
  if (!history_.past.empty()) {
    return str(
        kOtherCheckpoint, "found ", text_of(*report.held),
        ", which it has never committed");
  }
  return options_.recovers
      ? std::string()
      : str(kOtherLog, "that has made ", text_of(*report.held),
            ", found an empty one; --recover-from-replicas begins a new run "
            "with it");
}

bool Coordinator::is_overtaken(const Report& report) const {
  const auto known = replicas_.find(report.replica);
  return known != replicas_.end() &&
      known->second.report.incarnation == report.incarnation &&
      report.serial < known->second.report.serial;
}

CoordinatorDecisions Coordinator::received(
    std::span<const Report> reports, Instant now) {
  now_ = now;
  bool decides = false;
  for (const auto& report : reports) {
    decides = (!is_overtaken(report) && take(report)) || decides;
  }
  if (decides) {
    look_for_lost_log();
    compare_digests();
    advance();
  }
  for (const auto replica : std::exchange(to_answer_, {})) {
    tell(replica, "it has reported");
  }
  return std::exchange(decisions_, {});
}

bool Coordinator::take(const Report& report) {
  const auto replica = report.replica;
  if (const auto reason = refusal(report); !reason.empty()) {
    fence(replica, report.incarnation, reason, false);
    if (history_.past.empty() && report.run != 0 &&
        report.run != history_.run) {
      other_runs_[replica] = {report.incarnation, report.run};
      return true;
    }
    return false;
  }
  if (remembers_a_run(report)) {
    hear_memory(report);
    return true;
  }
  if (history_.lives[replica].current != report.incarnation) {
    write(
        IncarnationRecord{replica, report.incarnation},
        str("replica ", replica, " has started"));
    link_history_.forget(replica);
    forget_broken_links(replica);
    replicas_[replica].failed_joins = 0;
  }
  config_ = report.config;
  auto& known = replicas_[replica];
  to_answer_.push_back(replica);
  if (take_quietly(report, known)) {
    return false;
  }
  if (is_member(replica) && known.report.incarnation != report.incarnation &&
      stage_ != EpochStage::kClosed) {
    penalise(replica);
  }
  count_suspicion(report);
  count_bad_gradients(report);
  known.hangs = known.hangs && known.report.incarnation == report.incarnation &&
      !has_moved(known.report.progress, report.progress);
  known.report = report;
  known.connected = true;
  if (report.leaving && is_undecided(replica)) {
    // The replica that asked it to leave trusts it less.
    known.wrong = report.digest;
  }
  if (report.run == history_.run && report.held && is_foreign(*report.held)) {
    complaint_ =
        str("replica ", replica, " holds ", text_of(*report.held),
            ", which the log does not know: it has lost records");
  }
  return true;
}

// A replica of another run may be a leftover of that run, or its log may be the one that is missing
// here. It is treated as a leftover once new replicas outnumber those of other runs and are as many
// as the run needs to begin.
void Coordinator::look_for_lost_log() {
  if (is_recovering()) {
    lost_log_ = recover();
    return;
  }
  lost_log_.clear();
  if (!history_.past.empty()) {
    other_runs_.clear();
  }
  if (other_runs_.empty()) {
    return;
  }
  const auto enough = std::max<std::int64_t>(
      options_.replicas_start, std::ssize(other_runs_) + 1);
  if (connected() < enough) {
    const auto& [replica, life] = *other_runs_.begin();
    lost_log_ =
        str("the log is empty, but replica ", replica, " is of run ",
            life.second, ": give the log of that run, or stop the replica; or ",
            "wait for ", enough, " new replicas, with which a new run begins");
  }
}

CoordinatorDecisions Coordinator::lost(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& reason,
    Instant now) {
  now_ = now;
  if (memories_.erase({replica, incarnation}) > 0) {
    advance();
  }
  const auto other = other_runs_.find(replica);
  if (other != other_runs_.end() && other->second.first == incarnation) {
    other_runs_.erase(other);
    look_for_lost_log();
    advance();
  }
  if (!counts(replica, incarnation)) {
    return std::exchange(decisions_, {});
  }
  auto& known = replicas_.at(replica);
  known.connected = false;
  forget_broken_links(replica);
  look_for_lost_log();
  if (is_undecided(replica)) {
    // The others go on with their bits; if the lost replica comes back, it drops its own.
    known.wrong = known.report.digest;
  }
  // The suspicion of a peer may already have ended the epoch.
  if (stage_ == EpochStage::kClosed && is_member(replica)) {
    penalise(replica);
  }
  remove_from_epoch(
      replica,
      known.report.finished && known.report.held
          ? str("has ended with step ", known.report.held->step)
          : "was lost: " + reason);
  return std::exchange(decisions_, {});
}

CoordinatorDecisions Coordinator::hangs(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& reason,
    Instant now) {
  if (!counts(replica, incarnation)) {
    return {};
  }
  now_ = now;
  replicas_.at(replica).hangs = true;
  remove_from_epoch(replica, "hangs: " + reason);
  return std::exchange(decisions_, {});
}

void Coordinator::remove_from_epoch(ReplicaId replica, const std::string& how) {
  compare_digests();
  if (is_member(replica) && stage_ != EpochStage::kClosed) {
    penalise(replica);
    epoch_ended_because_ = str("replica ", replica, " ", how);
  }
  advance();
}

// Members that were connected before connect again at once: the first suspicions may be chance, or
// the fault of the accuser itself.
void Coordinator::count_suspicion(const Report& report) {
  constexpr int kTolerated = 3;
  const auto& suspicion = report.suspicion;
  const auto& before = replicas_.at(report.replica).report.suspicion;
  if (!suspicion || suspicion == before ||
      !replicas_.contains(suspicion->accused)) {
    return;
  }
  if (suspicion->epoch > started_) {
    if (suspicion->epoch == history_.epoch) {
      accuse(link_of(*suspicion, report.replica), suspicion->epoch);
    }
    return;
  }
  if (suspicion->noticed_by && replicas_.contains(*suspicion->noticed_by)) {
    link_history_.suspect(
        suspicion->accused, *suspicion->noticed_by, suspicion->epoch);
  }
  if (suspicion->epoch != history_.epoch) {
    return;
  }
  auto& suspected = suspected_[suspicion->accused];
  if (suspected.last == suspicion->epoch) {
    return;
  }
  suspected.last = suspicion->epoch;
  if (++suspected.epochs >= kTolerated) {
    penalise(suspicion->accused);
  }
}

CoordinatorDecisions Coordinator::tick(Instant now) {
  now_ = now;
  advance();
  return std::exchange(decisions_, {});
}

void Coordinator::advance() {
  apply_rules();
  view_.reset();
}

void Coordinator::apply_rules() {
  rules_at_ = now_;
  bool decided = true;
  while (decided) {
    decided = false;
    if (stage_ != EpochStage::kClosed) {
      if (broken_because_.empty()) {
        broken_because_ = broken();
      }
      if (!broken_because_.empty()) {
        if (awaits_votes()) {
          return;
        }
        end_broken_epoch();
      }
    }
    switch (stage_) {
      case EpochStage::kClosed:
        decided = form() || roll_back();
        break;
      case EpochStage::kJoining:
        decided = start();
        break;
      case EpochStage::kRunning:
        decided = commit() || plan();
        break;
    }
  }
}

bool Coordinator::counts(ReplicaId replica, Incarnation incarnation) const {
  const auto found = replicas_.find(replica);
  return found != replicas_.end() && found->second.connected &&
      found->second.report.incarnation == incarnation;
}

std::optional<Instant> Coordinator::next_tick() const {
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    if (at > rules_at_) {
      next = next ? std::min(*next, at) : at;
    }
  };
  if (out_until_max_ > rules_at_) {
    for (const auto& [replica, known] : replicas_) {
      consider(known.out_until);
    }
  }
  switch (stage_) {
    case EpochStage::kClosed:
      consider(form_at_);
      consider(form_at_ + options_.join_timeout);
      consider(start_at_);
      consider(reconnect_until_);
      if (lost_since_) {
        consider(*lost_since_ + hold_time());
      }
      break;
    case EpochStage::kJoining:
      consider(join_until_);
      break;
    case EpochStage::kRunning:
      if (planned_) {
        consider(plan_until_);
      }
      if (first_vote_) {
        consider(*first_vote_ + options_.vote_timeout);
      }
      if (broken_since_) {
        consider(*broken_since_ + options_.settle);
      }
      break;
  }
  return next;
}

// ---- what goes out ----

void Coordinator::write(Record record, const std::string& reason) {
  append(history_, record);
  look_again();
  decisions_.push_back({std::move(record), reason});
}

void Coordinator::notice(
    const char* counter, const std::string& culprit, const std::string& why) {
  decisions_.push_back({DetectedFault{counter, culprit}, why});
}

// The members, or what they have to do, have changed.
void Coordinator::look_again() {
  member_ids_.clear();
  for (const auto& member : history_.members) {
    member_ids_.push_back(member.replica);
  }
  std::ranges::sort(member_ids_);
  look_for_vote_at_ = look_for_state_at_ = 0;
}

RunView Coordinator::view() const {
  RunView view;
  view.run = history_.run;
  view.term = history_.term;
  view.canonical = history_.canonical.value_or(StateId());
  view.recent = history_.recent(kRecent);
  view.epoch = history_.epoch;
  view.planned = planned_;
  view.consumed = history_.consumed;
  for (const auto& [replica, lives] : history_.lives) {
    view.starts += 1 + lives.former.size();
    view.lives.push_back({replica, lives.current});
  }
  view.stage = stage_;
  if (stage_ != EpochStage::kClosed) {
    view.members = history_.members;
  }
  for (const auto& [replica, known] : replicas_) {
    const auto& report = known.report;
    if (known.connected && !report.addresses.empty()) {
      view.peers.push_back(
          {replica, report.incarnation, report.held, report.addresses});
    }
  }
  return view;
}

void Coordinator::send(
    ReplicaId replica,
    Incarnation incarnation,
    RunView view,
    const std::string& reason) {
  decisions_.push_back(
      {SendView{
           replica, incarnation,
           std::make_shared<const RunView>(std::move(view))},
       reason});
}

// REQUIRES: view_ is null if anything except what replicas hold has changed since it was made.
void Coordinator::tell(ReplicaId replica, const std::string& reason) {
  const auto& known = replicas_.at(replica);
  if (!known.connected || !history_.canonical) {
    return;
  }
  if (!view_) {
    view_ = std::make_shared<const RunView>(view());
  }
  const auto incarnation = known.report.incarnation;
  if (known.wrong) {
    RunView its = *view_;
    its.wrong = known.wrong;
    send(replica, incarnation, std::move(its), reason);
    return;
  }
  decisions_.push_back({SendView{replica, incarnation, view_}, reason});
}

void Coordinator::tell_all(const std::string& reason) {
  view_.reset();
  to_answer_.clear();
  for (const auto& [replica, known] : replicas_) {
    tell(replica, reason);
  }
}

// The replica no longer counts. `ended` says that this is because all steps are done.
void Coordinator::fence(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& why,
    bool ended) {
  RunView last;
  last.run = history_.run;
  last.term = history_.term;
  last.fenced = why;
  last.ended = ended;
  send(replica, incarnation, std::move(last), why);
}

}  // namespace sherd::ft
