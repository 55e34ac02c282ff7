// SPDX-License-Identifier: Apache-2.0
//
// The coordinator of a simulated world, its log, and the detection of silent replicas: what
// ft/coordinator/coordinator_server.h does over sockets.
#include <algorithm>
#include <utility>
#include <variant>

#include "sim/world.h"
#include "sim/world_process.h"

namespace sherd::sim {
namespace {

constexpr Duration kDetectorTick = std::chrono::milliseconds(125);
// With each new phase the failure detector forgets a fifth, so it remembers about this many steps.
constexpr int kRememberedSteps = 8;

// The part of a report that the detector uses.
ft::Report heartbeat(
    ft::ReplicaId replica,
    ft::Incarnation incarnation,
    const ft::TrainingProgress& progress) {
  ft::Report report;
  report.replica = replica;
  report.incarnation = incarnation;
  report.progress = progress;
  return report;
}

}  // namespace

// ---- the machine ----

void SimulatedWorld::start_coordinator() {
  ++coordinator_life_;
  ft::CoordinatorDecisions decisions;
  coordinator_ = std::make_unique<ft::Coordinator>(
      options_.coordinator, log_, now(), decisions);
  coordinator_busy_ = now();
  tick_at_.reset();
  carry_out(std::move(decisions));
  for (const auto& one : processes_) {
    if (one->machine) {
      after(*one, options_.times.reconnect, [this](Process& replica) {
        send_report(replica, replica.machine->report());
      });
    }
  }
  if (anything_to_find()) {
    watch();
  }
}

void SimulatedWorld::lose_coordinator(Duration away) {
  coordinator_.reset();
  ++coordinator_life_;
  detector_.reset();
  unheard_.clear();  // Its successor has never heard of them.
  events_.add(now() + away, [this, life = coordinator_life_] {
    if (life == coordinator_life_) {
      start_coordinator();
    }
  });
}

void SimulatedWorld::lose_coordinator_and_log(Duration away) {
  log_ = {};
  lose_coordinator(away);
}

// Nothing is decided while a record is being written.
void SimulatedWorld::to_coordinator(
    std::function<ft::CoordinatorDecisions()> call) {
  if (!coordinator_) {
    return;
  }
  if (now() < coordinator_busy_) {
    events_.add(
        coordinator_busy_,
        [this, life = coordinator_life_, call = std::move(call)]() mutable {
          if (life == coordinator_life_) {
            to_coordinator(std::move(call));
          }
        });
    return;
  }
  carry_out(call());
}

void SimulatedWorld::carry_out(ft::CoordinatorDecisions decisions) {
  bool writes = false;
  bool commits = false;
  for (const auto& decision : decisions) {
    if (const auto* record = std::get_if<ft::Record>(&decision.what)) {
      writes = true;
      commits = commits || std::holds_alternative<ft::CommitRecord>(*record);
      note(*record);
    }
  }
  if (commits) {
    weight_ = undisturbed_steps(decisions);
  }
  schedule_tick();
  if (!writes) {
    send_views(decisions);
    return;
  }
  coordinator_busy_ = now() + options_.times.sync;
  events_.add(
      coordinator_busy_,
      [this, life = coordinator_life_,
       all = std::make_shared<ft::CoordinatorDecisions>(std::move(decisions))] {
        if (life == coordinator_life_) {
          write(*all);
          send_views(*all);
        }
      });
}

void SimulatedWorld::write(const ft::CoordinatorDecisions& decisions) {
  for (const auto& decision : decisions) {
    if (const auto* record = std::get_if<ft::Record>(&decision.what)) {
      if (on_written_) {
        on_written_(*record);
      }
      ft::append(log_, *record);
    }
  }
}

void SimulatedWorld::send_views(ft::CoordinatorDecisions& decisions) {
  for (auto& decision : decisions) {
    if (auto* sent = std::get_if<ft::SendView>(&decision.what)) {
      traffic_.view(*sent, weight_);
      send(
          {.to_coordinator = false, .replica = sent->replica},
          [this, sent = std::make_shared<ft::SendView>(std::move(*sent))] {
            auto& one = process(sent->replica);
            if (one.machine && one.incarnation == sent->incarnation) {
              carry_out(one, one.machine->received(*sent->view));
            }
          });
    }
  }
}

bool SimulatedWorld::is_superseded(const ft::Report& report) const {
  const auto& all = coordinator_->history().lives;
  const auto known = all.find(report.replica);
  return known != all.end() && known->second.current > report.incarnation &&
      !known->second.former.contains(report.incarnation);
}

void SimulatedWorld::schedule_tick() {
  const auto next = coordinator_->next_tick();
  if (!next || (tick_at_ && *tick_at_ > now() && *tick_at_ <= *next)) {
    return;  // An earlier tick comes first, and schedules this one.
  }
  tick_at_ = next;
  events_.add(std::max(*next, now()), [this, life = coordinator_life_] {
    if (life == coordinator_life_) {
      to_coordinator([this] { return coordinator_->tick(now()); });
    }
  });
}

void SimulatedWorld::lost(
    ft::ReplicaId replica,
    ft::Incarnation incarnation,
    const std::string& why) {
  auto& one = process(replica);
  one.closed = std::max(one.closed, incarnation);
  to_coordinator([this, replica, incarnation, why] {
    return coordinator_->lost(replica, incarnation, why, now());
  });
}

// ---- what it decides ----

void SimulatedWorld::note(const ft::Record& record) {
  traffic_.record(
      record, std::holds_alternative<ft::CommitRecord>(record) ? weight_ : 1);
  if (const auto* commit = std::get_if<ft::CommitRecord>(&record)) {
    note_commit(*commit);
  } else if (const auto* epoch = std::get_if<ft::EpochRecord>(&record)) {
    ++progress_.epochs;
    if (log_.past.empty()) {  // A new run counts its epochs from the start.
      connecting_.clear();
      reductions_.clear();
    }
    connecting_.erase(
        connecting_.begin(), connecting_.lower_bound(epoch->epoch));
    reductions_.erase(
        reductions_.begin(), reductions_.lower_bound({epoch->epoch, 0}));
  } else if (const auto* back = std::get_if<ft::RollbackRecord>(&record)) {
    note_rollback(*back);
  }
  if (on_record_) {
    on_record_(record);
  }
}

void SimulatedWorld::note_commit(const ft::CommitRecord& record) {
  const auto trained = std::count_if(
      record.participants.begin(), record.participants.end(),
      [](const auto& one) { return !one.samples.empty(); });
  const double share =
      static_cast<double>(trained) / static_cast<double>(options_.replicas);
  committed_.push_back({record.commit.result.step, weight_, share});
  progress_.steps += weight_;
  progress_.work += static_cast<double>(weight_) * share;
}

void SimulatedWorld::note_rollback(const ft::RollbackRecord& record) {
  while (!committed_.empty() &&
         committed_.back().step > record.canonical.step) {
    const auto& gone = committed_.back();
    progress_.steps -= gone.weight;
    progress_.rolled_back += gone.weight;
    progress_.work -= static_cast<double>(gone.weight) * gone.share;
    committed_.pop_back();
  }
}

// How many steps end before anything comes from outside, if all running replicas train together and
// nothing but steps is under way. During them the machines do the same in each step, so one step
// that takes as long as all of them leaves them in the same state, except for its number.
std::int64_t SimulatedWorld::undisturbed_steps(
    const ft::CoordinatorDecisions& decisions) const {
  const auto last =
      std::find_if(decisions.rbegin(), decisions.rend(), [](const auto& one) {
        return std::holds_alternative<ft::SendView>(one.what);
      });
  const auto next = events_.next_outside();
  if (options_.every_step || last == decisions.rend() || !next ||
      anything_to_find() || !cut_links_.empty() || now() < stall_end_) {
    return 1;
  }
  const auto& view = *std::get<ft::SendView>(last->what).view;
  const bool all_train = std::all_of(
      view.members.begin(), view.members.end(), [&](const ft::Member& member) {
        const auto& one = process(member.replica);
        return one.machine && one.incarnation == member.incarnation &&
            !member.samples.empty();
      });
  if (view.stage != ft::EpochStage::kRunning || view.planned || !all_train ||
      running() != static_cast<int>(view.members.size())) {
    return 1;
  }
  return std::max<std::int64_t>((*next - now() - Duration(1)) / step_time(), 1);
}

// ---- silent replicas ----

bool SimulatedWorld::anything_to_find() const {
  return !unheard_.empty() ||
      std::any_of(processes_.begin(), processes_.end(), [](const auto& one) {
        return one->machine && one->hangs;
      });
}

// The detector learns from each step; here it is given the last ones only when it is needed.
void SimulatedWorld::watch() {
  if (detector_ || !coordinator_) {
    return;
  }
  detector_.emplace(ft::FailureDetectorOptions());
  const auto computing = options_.times.step - step_overhead();
  for (int back = kRememberedSteps; back > 0; --back) {
    const auto begin = now() - back * options_.times.step;
    const auto serial = static_cast<std::uint64_t>(kRememberedSteps - back);
    hear_all({ft::Activity::kComputing, 2 * serial + 1, {}}, begin);
    hear_all({ft::Activity::kReducing, 2 * serial + 2, {}}, begin + computing);
  }
  for (const auto& one : processes_) {
    one->progress.serial += 2 * kRememberedSteps;
  }
  events_.add(now(), [this] { tick_detector(); });
}

void SimulatedWorld::hear_all(
    const ft::TrainingProgress& progress, Instant at) {
  for (const auto& one : processes_) {
    if (one->machine) {
      detector_->received(heartbeat(one->id, one->incarnation, progress), at);
    }
  }
  for (const auto& [replica, incarnation] : unheard_) {
    detector_->received(heartbeat(replica, incarnation, progress), at);
  }
}

ft::TrainingProgress SimulatedWorld::progress_of(const Process& one) const {
  auto progress = one.progress;
  // It has computed, but there is no reduction.
  if (progress.activity == ft::Activity::kReducing && !one.reducing) {
    progress.activity = ft::Activity::kWaiting;
  }
  if (one.reducing && one.computed) {
    progress.activity = ft::Activity::kReducing;
    const auto& ring = log_.members;
    for (std::size_t i = 0; i < ring.size(); ++i) {
      if (ring[i].replica == one.id) {
        progress.waits_for = waited_for_by(i);
      }
    }
  }
  return progress;
}

void SimulatedWorld::tick_detector() {
  if (!detector_) {
    return;
  }
  if (!anything_to_find() || !coordinator_) {
    detector_.reset();
    return;
  }
  for (const auto& one : processes_) {
    if (one->machine) {
      detector_->received(
          heartbeat(one->id, one->incarnation, progress_of(*one)), now());
    }
  }
  for (const auto& finding : detector_->tick(now())) {
    act_on(finding);
  }
  events_.add(now() + kDetectorTick, [this] { tick_detector(); });
}

void SimulatedWorld::act_on(const ft::Finding& finding) {
  const auto replica = finding.replica;
  const auto incarnation = finding.incarnation;
  switch (finding.kind) {
    case ft::Finding::Kind::kSlow:
      return;
    case ft::Finding::Kind::kSilent:
      unheard_.erase({replica, incarnation});
      lost(replica, incarnation, finding.reason);
      return;
    case ft::Finding::Kind::kHung:
      to_coordinator([this, replica, incarnation, why = finding.reason] {
        return coordinator_->hangs(replica, incarnation, why, now());
      });
      if (auto& one = process(replica);
          one.machine && one.incarnation == incarnation && one.hangs) {
        // Whoever restarts the process ends it first.
        lose(replica, FailureKind::kProcess);
      }
      return;
  }
}

}  // namespace sherd::sim
