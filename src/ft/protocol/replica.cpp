// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/replica.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

auto age_of(const Order& order) {
  return std::make_tuple(
      order.term, order.epoch, order.canonical.step, order.stage);
}

// A plan may be taken back, and no later one has a lower number.
bool is_older(const Order& order, const Order& than) {
  return age_of(order) < age_of(than) ||
      (age_of(order) == age_of(than) && order.planned && than.planned &&
       order.planned->epoch < than.planned->epoch);
}

const Member* find(
    const std::vector<Member>& members, const ReplicaOptions& who) {
  for (const auto& member : members) {
    if (member.replica == who.replica &&
        member.incarnation == who.incarnation) {
      return &member;
    }
  }
  return nullptr;
}

}  // namespace

Replica::Replica(const ReplicaOptions& options)
    : is_(options), held_(options.held) {}

Report Replica::report() const {
  Report report;
  report.run = run_;
  report.replica = is_.replica;
  report.incarnation = is_.incarnation;
  report.config = is_.config;
  report.held = held_;
  report.joined = joined_.empty() ? Epoch() : joined_.back();
  report.vote = vote_;
  report.suspicion = suspicion_;
  report.digest = digest_;
  report.bad_gradients = bad_gradients_;
  report.leaving = leaving_;
  return report;
}

const Member* Replica::place() const { return find(order_.members, is_); }

bool Replica::has_joined(const Epoch& epoch) const {
  return std::find(joined_.begin(), joined_.end(), epoch) != joined_.end();
}

Tasks Replica::heard(const Order& order) {
  Tasks tasks;
  if (stopped_ || order.term < order_.term) {
    return tasks;
  }
  // A coordinator with another log has nothing to say here, and what is held may
  // be all that there is of the run.
  if (run_ != 0 && order.run != run_) {
    return tasks;
  }
  if (!order.fenced.empty()) {
    stopped_ = true;
    stop_reducing(tasks);
    tasks.push_back(StopTask{order.ended ? std::string() : order.fenced});
    return tasks;
  }
  if (is_older(order, order_)) {
    return tasks;
  }
  const auto before = report();
  run_ = order.run;
  order_ = order;
  // While something is written, it comes again with the next order.
  if (order.wrong && order.wrong == digest_ && !applying_ && !installing_) {
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
  for (const auto& commit : order_.recent) {
    if (commit.attempt == vote_->attempt && commit.base == vote_->base &&
        commit.gradients == vote_->gradients) {
      applying_ = commit;
      tasks.push_back(ApplyTask{commit});
      return;
    }
  }
  if (order_.epoch > vote_->attempt.epoch ||
      order_.canonical.step > vote_->base.step) {
    // Not committed, or not with this sum, and never will be.
    vote_.reset();
  }
}

void Replica::follow(Tasks& tasks) {
  if (reducing_ &&
      (order_.epoch != reducing_->epoch || order_.stage == Stage::kClosed)) {
    stop_reducing(tasks);
  }
  join(tasks);
  // With a sum or on the way to one it needs nobody.
  if (vote_ || applying_ || reducing_ || installing_) {
    return;
  }
  if (held_ != order_.canonical) {
    catch_up(tasks);
    return;
  }
  if (std::exchange(catching_up_, std::nullopt)) {
    tasks.push_back(StopCatchUpTask());
  }
  const auto* mine = place();
  if (mine == nullptr) {
    return;
  }
  if (samples_ != mine->samples) {
    samples_ = mine->samples;
    bad_gradients_.reset();
    tasks.push_back(ComputeTask{++serial_, *held_, *samples_});
  }
  if (order_.stage == Stage::kRunning && has_joined(order_.epoch) &&
      spoiled_ < order_.epoch) {
    reducing_ = Attempt{order_.epoch, held_->step + 1};
    tasks.push_back(ReduceTask{*reducing_, order_.members});
  }
}

// What is planned is joined beside what is under way.
void Replica::join(Tasks& tasks) {
  const auto go = [&](const Epoch& epoch, const std::vector<Member>& members) {
    if (epoch > joining_ && find(members, is_) != nullptr) {
      joining_ = epoch;
      tasks.push_back(JoinTask{epoch, members});
    }
  };
  go(order_.epoch, order_.members);
  if (order_.planned) {
    go(order_.planned->epoch, order_.planned->members);
  }
}

void Replica::catch_up(Tasks& tasks) {
  forget_gradients();
  if (catching_up_) {
    return;  // One after another: it ends, or fails.
  }
  catching_up_ = order_.canonical;
  tasks.push_back(CatchUpTask{held_, order_.canonical});
}

void Replica::stop_reducing(Tasks& tasks) {
  if (reducing_) {
    spoiled_ = std::max(spoiled_, reducing_->epoch);
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
      epoch >= order_.epoch) {
    std::erase_if(
        joined_, [&](const Epoch& one) { return one < order_.epoch; });
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
  if (stopped_ || !concerns || epoch <= spoiled_) {
    return tasks;
  }
  if (reducing_ && reducing_->epoch == epoch) {
    stop_reducing(tasks);
  }
  if (epoch == order_.epoch) {
    spoiled_ = std::max(spoiled_, epoch);
  }
  std::erase(joined_, epoch);
  // One of the epoch under way ends what is planned, too.
  if (!suspicion_ || suspicion_->epoch != order_.epoch) {
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
  spoiled_ = std::max(spoiled_, order_.epoch);
  suspicion_ = Suspicion{order_.epoch, is_.replica, "its own state is damaged"};
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
