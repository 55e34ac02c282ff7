// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/replica.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

auto age_of(const RunView& view) {
  return std::make_tuple(
      view.term, view.epoch, view.canonical.step, view.stage);
}

// A plan may be taken back, and no later one has a lower number.
bool is_older(const RunView& view, const RunView& than) {
  return age_of(view) < age_of(than) ||
      (age_of(view) == age_of(than) && view.planned && than.planned &&
       view.planned->epoch < than.planned->epoch);
}

const Member* find(
    const std::vector<Member>& members, const ReplicaIdentity& who) {
  for (const auto& member : members) {
    if (member.replica == who.replica &&
        member.incarnation == who.incarnation) {
      return &member;
    }
  }
  return nullptr;
}

}  // namespace

Replica::Replica(const ReplicaIdentity& options)
    : identity_(options), held_(options.held) {}

Report Replica::report() const {
  Report report;
  report.run = run_;
  report.replica = identity_.replica;
  report.incarnation = identity_.incarnation;
  report.config = identity_.config;
  report.held = held_;
  report.joined = joined_.empty() ? Epoch() : joined_.back();
  report.vote = vote_;
  report.suspicion = suspicion_;
  report.digest = digest_;
  report.bad_gradients = bad_gradients_;
  report.leaving = leaving_;
  return report;
}

const Member* Replica::own_member() const { return find(view_.members, identity_); }

bool Replica::has_joined(const Epoch& epoch) const {
  return std::find(joined_.begin(), joined_.end(), epoch) != joined_.end();
}

Tasks Replica::received(const RunView& view) {
  Tasks tasks;
  if (stopped_ || view.term < view_.term) {
    return tasks;
  }
  // A coordinator with another log has nothing to say here, and what is held may
  // be all that there is of the run.
  if (run_ != 0 && view.run != run_) {
    return tasks;
  }
  if (!view.fenced.empty()) {
    stopped_ = true;
    stop_reducing(tasks);
    tasks.push_back(StopTask{view.ended ? std::string() : view.fenced});
    return tasks;
  }
  if (is_older(view, view_)) {
    return tasks;
  }
  const auto before = report();
  run_ = view.run;
  view_ = view;
  // While something is written, it comes again with the next order.
  if (view.wrong && view.wrong == digest_ && !applying_ && !installing_) {
    return damaged();
  }
  settle_vote(tasks);
  follow(tasks);
  if (!(report() == before)) {
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

// What became of the step that it has reduced.
void Replica::settle_vote(Tasks& tasks) {
  if (!vote_ || applying_) {
    return;
  }
  for (const auto& commit : view_.recent) {
    if (commit.attempt == vote_->attempt && commit.base == vote_->base &&
        commit.gradients == vote_->gradients) {
      applying_ = commit;
      tasks.push_back(ApplyTask{commit});
      return;
    }
  }
  if (view_.epoch > vote_->attempt.epoch ||
      view_.canonical.step > vote_->base.step) {
    // Not committed, or not with this sum, and never will be.
    vote_.reset();
  }
}

void Replica::follow(Tasks& tasks) {
  if (reducing_ &&
      (view_.epoch != reducing_->epoch || view_.stage == EpochStage::kClosed)) {
    stop_reducing(tasks);
  }
  join(tasks);
  // With a sum or on the way to one it needs nobody.
  if (vote_ || applying_ || reducing_ || installing_) {
    return;
  }
  if (held_ != view_.canonical) {
    catch_up(tasks);
    return;
  }
  if (std::exchange(catching_up_, std::nullopt)) {
    tasks.push_back(StopCatchUpTask());
  }
  const auto* mine = own_member();
  if (mine == nullptr) {
    return;
  }
  if (samples_ != mine->samples) {
    samples_ = mine->samples;
    bad_gradients_.reset();
    tasks.push_back(ComputeTask{++serial_, *held_, *samples_});
  }
  if (view_.stage == EpochStage::kRunning && has_joined(view_.epoch) &&
      abandoned_epoch_ < view_.epoch) {
    reducing_ = Attempt{view_.epoch, held_->step + 1};
    tasks.push_back(ReduceTask{*reducing_, view_.members});
  }
}

// What is planned is joined beside what is under way.
void Replica::join(Tasks& tasks) {
  const auto go = [&](const Epoch& epoch, const std::vector<Member>& members) {
    if (epoch > joining_ && find(members, identity_) != nullptr) {
      joining_ = epoch;
      tasks.push_back(JoinTask{epoch, members});
    }
  };
  go(view_.epoch, view_.members);
  if (view_.planned) {
    go(view_.planned->epoch, view_.planned->members);
  }
}

void Replica::catch_up(Tasks& tasks) {
  forget_gradients();
  if (catching_up_) {
    return;  // One after another: it ends, or fails.
  }
  catching_up_ = view_.canonical;
  tasks.push_back(CatchUpTask{held_, view_.canonical});
}

void Replica::stop_reducing(Tasks& tasks) {
  if (reducing_) {
    abandoned_epoch_ = std::max(abandoned_epoch_, reducing_->epoch);
    tasks.push_back(StopReduceTask{reducing_->epoch});
    reducing_.reset();
  }
}

void Replica::forget_gradients() {
  vote_.reset();
  samples_.reset();
  bad_gradients_.reset();
}

Tasks Replica::joined(const Epoch& epoch) {
  Tasks tasks;
  if (!stopped_ && epoch == joining_ && !has_joined(epoch) &&
      epoch >= view_.epoch) {
    std::erase_if(
        joined_, [&](const Epoch& one) { return one < view_.epoch; });
    joined_.push_back(epoch);
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::reduced(const Attempt& attempt, std::uint64_t gradients) {
  Tasks tasks;
  if (reducing_ == attempt) {
    reducing_.reset();
    vote_ = Vote{attempt, *held_, gradients};
    settle_vote(tasks);  // Others may have been faster.
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::peer_lost(const Suspicion& suspicion) {
  Tasks tasks;
  const auto& epoch = suspicion.epoch;
  const bool concerns = epoch == joining_ || has_joined(epoch);
  if (stopped_ || !concerns || epoch <= abandoned_epoch_) {
    return tasks;
  }
  if (reducing_ && reducing_->epoch == epoch) {
    stop_reducing(tasks);
  }
  if (epoch == view_.epoch) {
    abandoned_epoch_ = std::max(abandoned_epoch_, epoch);
  }
  std::erase(joined_, epoch);
  // One of the epoch under way ends what is planned, too.
  if (!suspicion_ || suspicion_->epoch != view_.epoch) {
    suspicion_ = suspicion;
  }
  tasks.push_back(ReportTask{report()});
  return tasks;
}

// Nothing is stopped here: the coordinator ends the epoch for all.
Tasks Replica::bad_gradients(std::uint64_t serial, const GradientFault& fault) {
  Tasks tasks;
  if (!stopped_ && serial == serial_ && samples_ && !samples_->empty() &&
      !vote_ && !bad_gradients_) {
    bad_gradients_ = BadGradients{*held_, *samples_, fault};
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::applied(
    const StateId& state, const std::optional<StateDigest>& digest) {
  Tasks tasks;
  if (applying_ && applying_->result == state) {
    applying_.reset();
    held_ = state;
    digest_ = digest ? digest : digest_;
    forget_gradients();
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::fetched() {
  Tasks tasks;
  if (catching_up_ && !installing_ && !stopped_) {
    installing_ = true;
    tasks.push_back(InstallTask{++installs_});
  }
  return tasks;
}

Tasks Replica::fetch_failed() {
  Tasks tasks;
  if (catching_up_ && !installing_ && !stopped_) {
    catching_up_.reset();
    follow(tasks);
  }
  return tasks;
}

Tasks Replica::installed(
    std::uint64_t serial,
    const StateId& state,
    const std::optional<StateDigest>& digest) {
  Tasks tasks;
  if (installing_ && serial == installs_ && !stopped_) {
    installing_ = false;
    catching_up_.reset();
    held_ = state;
    digest_ = digest ? digest : digest_;
    forget_gradients();
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::damaged() {
  Tasks tasks;
  if (stopped_) {
    return tasks;
  }
  stop_reducing(tasks);
  abandoned_epoch_ = std::max(abandoned_epoch_, view_.epoch);
  suspicion_ = Suspicion{view_.epoch, identity_.replica, "its own state is damaged"};
  applying_.reset();
  catching_up_.reset();
  installing_ = false;
  held_.reset();
  digest_.reset();
  forget_gradients();
  follow(tasks);
  tasks.push_back(ReportTask{report()});
  return tasks;
}

Tasks Replica::leave() {
  leaving_ = true;
  return {ReportTask{report()}};
}

}  // namespace sherd::ft
