// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/replica.h"

#include <tuple>
#include <utility>

namespace sherd::ft {
namespace {

auto age_of(const Order& order) {
  return std::make_tuple(
      order.term, order.epoch, order.canonical.step, order.stage);
}

}  // namespace

Replica::Replica(ReplicaId replica, Incarnation incarnation, StateId held)
    : replica_(replica), incarnation_(incarnation), held_(held) {}

Report Replica::report() const {
  return {
      .replica = replica_,
      .incarnation = incarnation_,
      .held = held_,
      .joined = joined_,
      .vote = vote_,
      .suspicion = suspicion_,
      .leaving = leaving_};
}

const Member* Replica::place() const {
  for (const auto& member : order_.members) {
    if (member.replica == replica_ && member.incarnation == incarnation_) {
      return &member;
    }
  }
  return nullptr;
}

Tasks Replica::heard(const Order& order) {
  Tasks tasks;
  if (stopped_ || age_of(order) < age_of(order_)) {
    return tasks;
  }
  if (!order.fenced.empty()) {
    stopped_ = true;
    stop_reducing(tasks);
    tasks.push_back(StopTask{order.fenced});
    return tasks;
  }
  const auto before = report();
  order_ = order;
  settle_vote(tasks);
  follow(tasks);
  if (!(report() == before)) {
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

// What became of the step that it has reduced.
void Replica::settle_vote(Tasks& tasks) {
  if (!vote_) {
    return;
  }
  if (order_.commit && order_.commit->attempt == vote_->attempt) {
    tasks.push_back(ApplyTask{*order_.commit});
    held_ = order_.commit->result;
    forget_gradients();
  } else if (
      order_.epoch > vote_->attempt.epoch ||
      order_.canonical.step > vote_->base.step) {
    // Not committed, and never will be.
    vote_.reset();
  }
}

void Replica::follow(Tasks& tasks) {
  const auto* mine = place();
  const bool canonical = held_ == order_.canonical;
  if (reducing_ &&
      (order_.epoch != joined_ || order_.stage == Stage::kClosed ||
       !canonical)) {
    stop_reducing(tasks);
  }
  if (!canonical && !vote_) {
    forget_gradients();
    if (fetching_ != order_.canonical) {
      fetching_ = order_.canonical;
      tasks.push_back(FetchTask{order_.canonical});
    }
    return;
  }
  if (mine == nullptr || !canonical) {
    return;
  }
  if (order_.epoch > joining_) {
    joining_ = order_.epoch;
    tasks.push_back(JoinTask{order_.epoch, order_.members});
  }
  if (vote_) {
    return;
  }
  const auto step = order_.canonical.step + 1;
  if (samples_ != mine->samples) {
    samples_ = mine->samples;
    computed_ = samples_->empty();
    if (!computed_) {
      tasks.push_back(ComputeTask{step, *samples_});
    }
  }
  if (order_.stage == Stage::kRunning && joined_ == order_.epoch && computed_ &&
      !reducing_ && !(suspicion_ && suspicion_->epoch == joined_)) {
    reducing_ = true;
    tasks.push_back(ReduceTask{{order_.epoch, step}, order_.members});
  }
}

void Replica::stop_reducing(Tasks& tasks) {
  if (std::exchange(reducing_, false)) {
    tasks.push_back(StopReduceTask{joined_});
  }
}

void Replica::forget_gradients() {
  vote_.reset();
  samples_.reset();
  computed_ = false;
}

Tasks Replica::computed(std::int64_t step) {
  Tasks tasks;
  if (samples_ && held_ && step == held_->step + 1) {
    computed_ = true;
    follow(tasks);
  }
  return tasks;
}

Tasks Replica::joined(const Epoch& epoch) {
  Tasks tasks;
  if (epoch == joining_ && epoch > joined_) {
    joined_ = epoch;
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::reduced(const Attempt& attempt, std::uint64_t gradients) {
  Tasks tasks;
  if (reducing_ && attempt.epoch == joined_ && held_ &&
      attempt.step == held_->step + 1) {
    reducing_ = false;
    vote_ = Vote{attempt, *held_, gradients};
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::reduce_failed(const Epoch& epoch, Suspicion suspicion) {
  Tasks tasks;
  if (reducing_ && epoch == joined_) {
    reducing_ = false;
    suspicion_ = std::move(suspicion);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::fetched(const StateId& state) {
  Tasks tasks;
  if (fetching_ == state) {
    fetching_.reset();
    held_ = state;
    forget_gradients();
    follow(tasks);
    tasks.push_back(ReportTask{report()});
  }
  return tasks;
}

Tasks Replica::damaged() {
  Tasks tasks;
  stop_reducing(tasks);
  forget_gradients();
  held_.reset();
  follow(tasks);
  tasks.push_back(ReportTask{report()});
  return tasks;
}

Tasks Replica::leave() {
  leaving_ = true;
  return {ReportTask{report()}};
}

}  // namespace sherd::ft
