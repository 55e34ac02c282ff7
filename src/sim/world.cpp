// SPDX-License-Identifier: Apache-2.0
//
// The time of the world, its faults, and the state of the run.
#include "sim/world.h"

#include <algorithm>

#include "base/check.h"
#include "sim/world_process.h"

namespace sherd::sim {

SimulatedWorld::SimulatedWorld(const SimulatedWorldOptions& options)
    : options_(options), traffic_(options.ranks_per_replica) {
  SHERD_CHECK(
      options.replicas >= 1, "[sim] expected at least one replica, found ",
      options.replicas);
  SHERD_CHECK(
      options.times.step > step_overhead(),
      "[sim] expected a step longer than the ", seconds(step_overhead()),
      " s that deciding about it takes, found one of ",
      seconds(options.times.step), " s");
  for (int i = 0; i < options.replicas; ++i) {
    processes_.push_back(std::make_unique<Process>());
    processes_.back()->id = static_cast<ft::ReplicaId>(i);
  }
  start_coordinator();
}

SimulatedWorld::~SimulatedWorld() = default;

void SimulatedWorld::run_until(Instant end) {
  for (auto next = events_.next(); next && *next < end; next = events_.next()) {
    events_.run_next();
    if (after_event_) {
      after_event_(*this);
    }
  }
  events_.wait_until(end);
}

// ---- time ----

void SimulatedWorld::stall(Duration time) {
  const auto begin = std::max(stall_end_, now());
  const auto end = std::max(begin, now() + time);
  stalled_ += end - begin;
  stall_end_ = end;
}

Instant SimulatedWorld::training_now() const {
  return std::max(stall_end_, now()) - stalled_;
}

void SimulatedWorld::at_training(Instant due, EventQueue::Action action) {
  const auto wait = std::max(due - training_now(), Duration(0));
  events_.add(
      std::max(stall_end_, now()) + wait,
      [this, due, action = std::move(action)] {
        // Training may have stood still meanwhile.
        if (now() < stall_end_ || training_now() < due) {
          at_training(due, action);
        } else {
          action();
        }
      });
}

void SimulatedWorld::after(
    const Process& of, Duration time, std::function<void(Process&)> call) {
  events_.add(now() + time, bound(of, std::move(call)));
}

void SimulatedWorld::after_training(
    const Process& of, Duration time, std::function<void(Process&)> call) {
  at_training(training_now() + time, bound(of, std::move(call)));
}

EventQueue::Action SimulatedWorld::bound(
    const Process& of, std::function<void(Process&)> call) {
  return [this, id = of.id, life = of.life, call = std::move(call)] {
    auto& one = process(id);
    if (one.life == life && one.machine && !one.hangs) {
      call(one);
    }
  };
}

Duration step_overhead_of(const WorldTimes& times) {
  return 2 * times.message + times.sync + 4 * times.leader_fan_out;
}

Duration SimulatedWorld::step_overhead() const {
  return step_overhead_of(options_.times);
}

Duration SimulatedWorld::computing_time(const Process& one) const {
  const auto usual = seconds(options_.times.step - step_overhead());
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(usual * one.slowdown));
}

Duration SimulatedWorld::step_time() const {
  Duration longest{0};
  for (const auto& one : processes_) {
    if (one->machine) {
      longest = std::max(longest, computing_time(*one));
    }
  }
  return longest + step_overhead();
}

// ---- faults ----

ft::StateId SimulatedWorld::first_state() {
  constexpr std::int64_t kStep = 1000;
  return {kStep, ft::first_lineage(1, 1)};
}

void SimulatedWorld::start(
    ft::ReplicaId replica, std::optional<ft::StateId> held) {
  auto& one = process(replica);
  SHERD_ASSERT(!one.machine, "the replica runs already");
  count_time();
  ++running_;
  ++one.life;
  one.incarnation = ++incarnations_;
  one.reports = 0;
  one.hangs = false;
  // Initial values from which no step was made.
  const ft::StateId nothing{0, ft::first_lineage(1, 2)};
  one.parameters = held.value_or(nothing).lineage;
  one.machine.emplace(ft::ReplicaIdentity{
      .replica = replica,
      .incarnation = one.incarnation,
      .config = 1,
      .held = held.value_or(nothing)});
  one.progress = {};
  one.begin(ft::Activity::kIdle);
  send_report(one, one.machine->report());
}

void SimulatedWorld::end(Process& one) {
  count_time();
  --running_;
  stop_reducing(one);
  for (auto& [epoch, connecting] : connecting_) {
    connecting.erase(one.id);
  }
  ++one.life;
  one.machine.reset();
  one.hangs = false;
  one.task.reset();
  one.computed = false;
  one.fetched.reset();
}

void SimulatedWorld::lose(
    ft::ReplicaId replica,
    FailureKind kind,
    std::optional<Duration> noticed_after) {
  auto& one = process(replica);
  SHERD_ASSERT(one.machine.has_value(), "the replica does not run");
  SHERD_ASSERT(kind != FailureKind::kLink, "no replica is lost with a link");
  const auto incarnation = one.incarnation;
  if (kind == FailureKind::kHang && !noticed_after) {
    one.hangs = true;
    watch();
    return;
  }
  end(one);
  if (kind == FailureKind::kHost && !noticed_after) {
    unheard_.emplace(replica, incarnation);
    watch();
    return;
  }
  const auto after = noticed_after.value_or(options_.times.end_of_connection);
  events_.add(now() + after, [this, replica, incarnation, noticed_after] {
    if (!noticed_after) {
      blame_by_peers(replica, "its connection has ended");
    }
    lost(replica, incarnation, "its connection has ended");
  });
}

void SimulatedWorld::leave(ft::ReplicaId replica) {
  auto& one = process(replica);
  SHERD_ASSERT(one.machine.has_value(), "the replica does not run");
  carry_out(one, one.machine->leave());
}

void SimulatedWorld::reset_link(ft::ReplicaId one, ft::ReplicaId other) {
  blame(one, other, "its connection was reset");
  blame(other, one, "its connection was reset");
}

void SimulatedWorld::repeat_report(ft::ReplicaId replica) {
  auto& one = process(replica);
  SHERD_ASSERT(one.machine.has_value(), "the replica does not run");
  send_report(one, one.machine->report());
}

void SimulatedWorld::reset_connection(ft::ReplicaId replica) {
  auto& one = process(replica);
  SHERD_ASSERT(one.machine.has_value(), "the replica does not run");
  ++one.connection;
  to_coordinator([this, replica, incarnation = one.incarnation] {
    return coordinator_->lost(
        replica, incarnation, "its connection was reset", now());
  });
  after(one, options_.times.reconnect, [this](Process& again) {
    send_report(again, again.machine->report());
  });
}

void SimulatedWorld::cut_link(ft::ReplicaId one, ft::ReplicaId other) {
  cut_links_.insert(std::minmax(one, other));
}

void SimulatedWorld::mend_link(ft::ReplicaId one, ft::ReplicaId other) {
  cut_links_.erase(std::minmax(one, other));
}

void SimulatedWorld::set_slowdown(ft::ReplicaId replica, double factor) {
  process(replica).slowdown = factor;
}

// ---- the state of the run ----

SimulatedWorld::Process& SimulatedWorld::process(ft::ReplicaId replica) const {
  SHERD_ASSERT(replica < processes_.size(), "there is no such replica");
  return *processes_[replica];
}

bool SimulatedWorld::runs(ft::ReplicaId replica) const {
  return process(replica).machine.has_value();
}

bool SimulatedWorld::hangs(ft::ReplicaId replica) const {
  return process(replica).hangs;
}

const ft::Replica* SimulatedWorld::replica(ft::ReplicaId replica) const {
  const auto& machine = process(replica).machine;
  return machine ? &*machine : nullptr;
}

ft::Incarnation SimulatedWorld::incarnation(ft::ReplicaId replica) const {
  return process(replica).incarnation;
}

const ft::Lineage& SimulatedWorld::parameters(ft::ReplicaId replica) const {
  SHERD_ASSERT(runs(replica), "the replica does not run");
  return process(replica).parameters;
}

void SimulatedWorld::count_time() {
  const auto time = now() - counted_until_;
  progress_.replica_time += time * running_;
  if (running_ < options_.coordinator.replicas_min) {
    progress_.too_few_time += time;
  }
  counted_until_ = now();
}

SimulatedWorld::Progress SimulatedWorld::progress() {
  count_time();
  return progress_;
}

}  // namespace sherd::sim
