// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's inputs and outputs, and the order in which it applies its rules.
#include "ft/protocol/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

// Commits in a view: a replica that lacks no more than these catches up by fetching their sums.
constexpr std::size_t kRecent = 8;

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
      now_(now) {
  const auto run = history_.run == 0 ? options.run : history_.run;
  write(TermRecord{history_.term + 1, run}, epoch_ended_because_);
  decisions = std::exchange(decisions_, {});
}

// ---- what comes in ----

// Why the sender of the report is fenced; empty: it is not.
std::string Coordinator::refusal(const Report& report) const {
  constexpr std::int64_t kStepMax = std::int64_t{1} << 60;
  if (report.incarnation == 0 ||
      (report.held &&
       (report.held->step < 0 || report.held->step > kStepMax))) {
    return "expected a life other than 0 and a step of a run, found others";
  }
  if (report.replica >= options_.replicas_max) {
    return str(
        "expected a replica below ", options_.replicas_max, ", found ",
        report.replica);
  }
  if (report.run != 0 && report.run != history_.run) {
    return str(
        "this is run ", history_.run, ", the replica is of run ", report.run);
  }
  if (config_ != 0 && report.config != config_) {
    return str(
        "expected the configuration ", config_,
        " of the other replicas, found ", report.config);
  }
  const auto lives = history_.lives.find(report.replica);
  if (lives != history_.lives.end() &&
      lives->second.former.contains(report.incarnation)) {
    return str(
        "incarnation ", report.incarnation, " of replica ", report.replica,
        " was replaced by a newer one");
  }
  return refusal_of_loaded(report);
}

// Neither committed in this log nor older than its first state.
bool Coordinator::is_foreign(const StateId& state) const {
  const auto first =
      history_.past.empty() ? 0 : history_.past.front().state.step;
  return state.step > first && !history_.knows(state);
}

// A replica that has heard no coordinator yet has its state from a disk.
std::string Coordinator::refusal_of_loaded(const Report& report) const {
  if (report.run != 0 || !report.held || !is_foreign(*report.held)) {
    return {};
  }
  if (!history_.past.empty()) {
    return str(
        "expected a checkpoint of this run, or none, found ",
        text_of(*report.held), ", which it has never committed");
  }
  return options_.recovers
      ? std::string()
      : str("expected the log of the run that has made ", text_of(*report.held),
            ", found an empty one; --recover-from-replicas begins a new run "
            "with it");
}

bool Coordinator::is_overtaken(const Report& report) const {
  const auto known = replicas_.find(report.replica);
  return known != replicas_.end() &&
      known->second.report.incarnation == report.incarnation &&
      report.serial < known->second.report.serial;
}

CoordinatorDecisions Coordinator::received(const Report& report, Instant now) {
  now_ = now;
  if (!is_overtaken(report)) {
    take(report);
  }
  return std::exchange(decisions_, {});
}

void Coordinator::take(const Report& report) {
  const auto replica = report.replica;
  if (const auto reason = refusal(report); !reason.empty()) {
    RunView fence = view();
    fence.fenced = reason;
    decisions_.push_back(
        {SendView{replica, report.incarnation, fence}, reason});
    if (history_.past.empty() && report.run != 0) {
      complaint_ = str(
          "the log is empty, but replica ", replica, " is of run ", report.run);
    }
    return;
  }
  if (history_.lives[replica].current != report.incarnation) {
    write(
        IncarnationRecord{replica, report.incarnation},
        str("replica ", replica, " has started"));
    link_faults_.forget(replica);
    forget_broken_links(replica);
    replicas_[replica].failed_joins = 0;
  }
  config_ = report.config;
  auto& known = replicas_[replica];
  if (is_member(replica) && known.report.incarnation != report.incarnation &&
      phase_ != Phase::kForming) {
    penalise(replica);
  }
  count_suspicion(report);
  count_bad_gradients(report);
  // A serial goes back when a reduction is given up, which is no progress.
  known.hangs = known.hangs && known.report.incarnation == report.incarnation &&
      known.report.progress.serial >= report.progress.serial &&
      known.report.progress.activity == report.progress.activity;
  known.report = report;
  known.connected = true;
  if (report.leaving && is_undecided(replica)) {
    known.wrong = report.digest;  // Whoever asked it to leave trusts it less.
  }
  compare_digests();
  if (report.finished && report.held) {
    finished_ = report.held;
  }
  if (report.run == history_.run && report.held && is_foreign(*report.held)) {
    complaint_ =
        str("replica ", replica, " holds ", text_of(*report.held),
            ", which the log does not know: it has lost records");
  }
  advance();
  tell(replica, "it has reported");
}

CoordinatorDecisions Coordinator::lost(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& reason,
    Instant now) {
  if (!counts(replica, incarnation)) {
    return {};
  }
  now_ = now;
  auto& known = replicas_.at(replica);
  known.connected = false;
  forget_broken_links(replica);
  if (is_undecided(replica)) {
    // The others go on with their bits; if it comes back, it drops its own.
    known.wrong = known.report.digest;
  }
  // A peer's suspicion may have ended the epoch before.
  if (phase_ == Phase::kForming && is_member(replica)) {
    penalise(replica);
  }
  remove_from_epoch(replica, "was lost: " + reason);
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
  if (is_member(replica) && phase_ != Phase::kForming) {
    penalise(replica);
    epoch_ended_because_ = str("replica ", replica, " ", how);
  }
  advance();
}

// What was connected is connected again at once: the first times it may be chance, or the accuser's
// own fault.
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
    link_faults_.suspect(
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
  bool decided = true;
  while (decided) {
    decided = false;
    if (phase_ != Phase::kForming) {
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
    switch (phase_) {
      case Phase::kForming:
        decided = form() || roll_back();
        break;
      case Phase::kJoining:
        decided = start();
        break;
      case Phase::kRunning:
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

std::optional<Instant> Coordinator::next_tick(Instant now) const {
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    if (at > now) {
      next = next ? std::min(*next, at) : at;
    }
  };
  for (const auto& [replica, known] : replicas_) {
    consider(known.out_until);
  }
  switch (phase_) {
    case Phase::kForming:
      consider(form_at_);
      consider(form_at_ + options_.join_timeout);
      consider(start_at_);
      consider(reconnect_until_);
      if (lost_since_) {
        consider(*lost_since_ + hold_time());
      }
      break;
    case Phase::kJoining:
      consider(join_until_);
      break;
    case Phase::kRunning:
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
  decisions_.push_back({AppendRecord{std::move(record)}, reason});
}

RunView Coordinator::view() const {
  RunView view;
  view.run = history_.run;
  view.term = history_.term;
  view.canonical = history_.canonical.value_or(StateId());
  view.recent = history_.recent(kRecent);
  view.epoch = history_.epoch;
  view.planned = planned_;
  if (phase_ != Phase::kForming) {
    view.members = history_.members;
    view.stage =
        phase_ == Phase::kRunning ? EpochStage::kRunning : EpochStage::kJoining;
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

void Coordinator::tell(ReplicaId replica, const std::string& reason) {
  const auto& known = replicas_.at(replica);
  if (known.connected && history_.canonical) {
    auto said = view();
    said.wrong = known.wrong;
    decisions_.push_back(
        {SendView{replica, known.report.incarnation, std::move(said)}, reason});
  }
}

void Coordinator::tell_all(const std::string& reason) {
  for (const auto& [replica, known] : replicas_) {
    tell(replica, reason);
  }
}

}  // namespace sherd::ft
