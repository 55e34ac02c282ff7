// SPDX-License-Identifier: Apache-2.0
#include "ft/coordinator/status_board.h"

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/log.h"

namespace sherd::ft {
namespace {

constexpr std::size_t kFailuresMax = 32;
constexpr Duration kSlowEvery = std::chrono::minutes(1);

}  // namespace

StatusBoard::ReplicaRow* StatusBoard::life(
    ReplicaId replica, Incarnation incarnation) {
  const auto found = rows_.find(replica);
  return found != rows_.end() && found->second.report.incarnation == incarnation
      ? &found->second
      : nullptr;
}

// Whether an incarnation of it is connected and counts.
bool StatusBoard::is_there(ReplicaId replica) const {
  const auto found = rows_.find(replica);
  return found != rows_.end() && found->second.connected &&
      !found->second.fenced;
}

// Whether the reporter has found the suspicion itself, in the current epoch. If the epoch is over
// or just beginning, the coordinator decides who is to blame; an accused replica only repeats what
// others say of it.
bool StatusBoard::is_news(const Report& report) const {
  const auto& suspicion = report.suspicion;
  return suspicion->epoch == view_->epoch &&
      view_->stage == EpochStage::kRunning &&
      !(suspicion->noticed_by && suspicion->accused == report.replica);
}

// A replica that leaves in order also looks lost to its neighbours.
bool StatusBoard::goes_in_order(ReplicaId replica) const {
  const auto found = rows_.find(replica);
  return found != rows_.end() &&
      (found->second.report.leaving || found->second.report.finished);
}

void StatusBoard::received(
    const Report& report,
    const std::string& address,
    Instant now,
    bool has_place) {
  ReplicaRow* before = life(report.replica, report.incarnation);
  if (before == nullptr) {
    // Replica numbers may be made up, and must not fill the memory.
    if (report.replica >= kReplicasMax ||
        (!has_place && is_there(report.replica))) {
      return;
    }
    before = &(rows_[report.replica] = ReplicaRow());
    before->since = now;
  }
  const auto& suspicion = report.suspicion;
  if (suspicion && suspicion != before->report.suspicion && is_news(report) &&
      !goes_in_order(suspicion->accused)) {
    failed(
        name_of(suspicion->accused),
        str(suspicion->reason, " (says ", name_of(report.replica), ")"), now);
  }
  before->report = report;
  before->address = address;
  before->connected = true;
}

void StatusBoard::wrote(
    const Record& record, const std::string& reason, Instant now) {
  if (std::holds_alternative<CommitRecord>(record)) {
    pace_.committed(now);
    committed_at_ = now;
    count("commits");
  } else if (const auto* epoch = std::get_if<EpochRecord>(&record)) {
    count("epochs");
    log_info(str("[ft] ", text_of(epoch->epoch), ": ", reason));
  } else if (const auto* rollback = std::get_if<RollbackRecord>(&record)) {
    count("rollbacks");
    failed(
        "all holders of " + text_of(rollback->lost),
        str("rolled back to ", text_of(rollback->canonical), ": ", reason),
        now);
  } else if (const auto* recovery = std::get_if<RecoveryRecord>(&record)) {
    count("recoveries");
    failed(
        "the log",
        str("was empty: ", reason, ", from ", text_of(recovery->canonical())),
        now);
  } else if (const auto* life = std::get_if<IncarnationRecord>(&record)) {
    count("lives");
    log_info(str("[ft] ", name_of(life->replica), " has started"));
  }
}

void StatusBoard::told(
    ReplicaId replica,
    Incarnation incarnation,
    const std::shared_ptr<const RunView>& view) {
  if (view->fenced.empty()) {
    view_ = view;
    return;
  }
  count("fences");
  if (ReplicaRow* known = life(replica, incarnation)) {
    known->fenced = true;
  }
}

void StatusBoard::lost(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& cause,
    Instant now) {
  ReplicaRow* known = life(replica, incarnation);
  if (known == nullptr) {
    return;
  }
  known->connected = false;
  if (!known->fenced && !goes_in_order(replica)) {
    failed(name_of(replica), cause, now);
  }
}

void StatusBoard::failed(
    const std::string& culprit, const std::string& cause, Instant now) {
  count("failures");
  log_warning(str("[ft] ", culprit, ": ", cause));
  failures_.push_front({culprit, cause, now});
  if (failures_.size() > kFailuresMax) {
    failures_.pop_back();
  }
}

void StatusBoard::noticed(
    const DetectedFault& notice, const std::string& reason, Instant now) {
  count(notice.counter);
  failed(notice.culprit, reason, now);
}

void StatusBoard::slow(
    ReplicaId replica, const std::string& reason, Instant now) {
  count("slow_phases");
  const auto found = rows_.find(replica);
  if (found == rows_.end()) {
    return;
  }
  auto& called = found->second.called_slow;
  if (!called || now - *called >= kSlowEvery) {
    called = now;
    log_info(str("[ft] ", name_of(replica), " is slow: ", reason));
  }
}

std::string StatusBoard::state_of(const ReplicaRow& known, bool hangs) const {
  if (!known.connected) {
    return known.report.finished ? "done"
        : known.report.leaving   ? "left"
                                 : "lost";
  }
  if (known.fenced) {
    return "fenced";
  }
  if (hangs) {
    return "hangs";
  }
  const auto* member =
      find(view_->members, known.report.replica, known.report.incarnation);
  if (member != nullptr) {
    return member->samples.empty() ? "follows" : "member";
  }
  return known.report.held == view_->canonical ? "ready" : "behind";
}

std::string StatusBoard::stage() const {
  if (view_->epoch == Epoch()) {
    return "waiting for replicas";
  }
  switch (view_->stage) {
    case EpochStage::kJoining:
      return "joining";
    case EpochStage::kRunning:
      return "running";
    case EpochStage::kClosed:
      return "closed";
  }
  return "?";
}

ReplicaStatus StatusBoard::show(
    ReplicaId replica,
    ReplicaRow& known,
    const StatusSources& sources,
    Instant now) const {
  const auto* detector = sources.detector;
  const auto incarnation = known.report.incarnation;
  const auto liveness = detector == nullptr
      ? FailureDetector::Liveness()
      : detector->liveness(replica, incarnation);
  auto state = state_of(known, liveness.hung);
  if (state != known.state) {
    known.state = std::move(state);
    known.since = now;
  }
  const auto& held = known.report.held;
  ReplicaStatus shown{
      .replica = replica,
      .state = known.state,
      .slow = liveness.slow,
      .held = held,
      .lag = view_->canonical.step - (held ? held->step : 0),
      .activity = text_of(known.report.progress.activity),
      .address = known.address,
      .since_s = seconds(now - known.since)};
  if (detector != nullptr) {
    shown.ranks = detector->ranks(replica, incarnation, sources.watched_at);
  }
  return shown;
}

RunStatus StatusBoard::status(const StatusSources& sources, Instant now) {
  RunStatus status;
  status.up_s = seconds(now - began_);
  status.slept_s = seconds(sources.slept);
  status.complaint = sources.complaint;
  status.run = view_->run;
  status.term = view_->term;
  status.epoch = view_->epoch;
  status.canonical = view_->canonical;
  if (sources.history != nullptr) {
    status.run = sources.history->run;
    status.term = sources.history->term;
    status.epoch = sources.history->epoch;
    status.canonical = sources.history->canonical.value_or(StateId());
    status.samples = sources.history->consumed.size();
  }
  status.stage = stage();
  status.since_commit_s =
      seconds(now - (pace_.commits() == 0 ? began_ : committed_at_));
  status.steps_per_s = pace_.steps_per_s(now);
  status.longest_gap_s = seconds(pace_.longest_gap(now));
  status.effective = pace_.effective(now);
  for (auto& [replica, known] : rows_) {
    status.replicas.push_back(show(replica, known, sources, now));
  }
  for (const auto& one : failures_) {
    status.failures.push_back({seconds(now - one.at), one.culprit, one.cause});
  }
  status.counters = counters_;
  return status;
}

}  // namespace sherd::ft
