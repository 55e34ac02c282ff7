// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/model_world_testing.h"

namespace sherd::ft {

CoordinatorDecisions Model::hear(
    State& state,
    const std::vector<std::shared_ptr<const Message>>& messages) const {
  std::vector<Report> reports;
  for (const auto& message : messages) {
    // The connections of former incarnations end where a new one begins.
    const auto ended = [&](const auto& one) {
      return one->to_coordinator && one->replica == message->replica &&
          one->incarnation < message->incarnation;
    };
    if (std::erase(state.network, message) > 0) {
      std::erase_if(state.network, ended);
      reports.push_back(heard(state, message->report));
    }
  }
  return state.coordinator->received(reports, state.now);
}

Report Model::heard(const State& state, Report report) const {
  const auto& coordinator = *state.coordinator;
  if (options_.mutation == Mutation::kRecoverFromSome && report.remembers) {
    report.remembers->lives = {{report.replica, report.incarnation}};
  }
  const auto& canonical = coordinator.history().canonical;
  if (options_.mutation == Mutation::kStepIsIdentity && canonical) {
    if (report.held && report.held->step == canonical->step) {
      report.held = canonical;
    }
    if (report.vote && report.vote->base.step == canonical->step) {
      report.vote->base = *canonical;
    }
  }
  return report;
}

void Model::deliver(State& state, const Message& message) const {
  const auto& before = *std::as_const(state).replicas[message.replica];
  if (!before.alive || before.incarnation != message.incarnation) {
    return;
  }
  auto& self = *state.replicas[message.replica];
  auto view = message.view;
  if (options_.mutation == Mutation::kStepIsIdentity && self.protocol.held() &&
      !self.protocol.report().vote &&
      self.protocol.held()->step == view.canonical.step) {
    view.canonical = *self.protocol.held();
  }
  carry_out(state, self, self.protocol.received(view));
}

std::vector<BrokenLink> Model::dead_links(
    const State& state, const std::vector<Member>& ring) {
  std::vector<BrokenLink> dead;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const auto from = ring[i].replica;
    const auto to = ring[(i + 1) % ring.size()].replica;
    if (state.cut_links.contains({from, to})) {
      dead.push_back({.accused = to, .noticed_by = from});
    }
  }
  return dead;
}
std::optional<Suspicion> Model::suspicion_of(
    const State& state,
    const Process& self,
    const Epoch& epoch,
    const std::vector<Member>& members) {
  const auto me = self.protocol.report().replica;
  for (const auto& link : dead_links(state, members)) {
    if (link.noticed_by == me) {
      return Suspicion{epoch, link.accused, "dead", me};
    }
    if (link.accused == me) {
      return Suspicion{epoch, link.noticed_by, "dead", me};
    }
  }
  for (const auto& member : members) {
    const auto& peer = *state.replicas[member.replica];
    if (!peer.alive || peer.cut || peer.incarnation != member.incarnation) {
      return Suspicion{epoch, member.replica, "lost", me};
    }
    if (ModelAccess::has_left(peer.protocol, epoch)) {
      const auto said = peer.protocol.report().suspicion;
      return said && said->epoch == epoch
          ? *said
          : Suspicion{epoch, member.replica, "has left", member.replica};
    }
  }
  return std::nullopt;
}

void Model::add_reports(
    const State& state, std::vector<Choice>& choices) const {
  std::vector<std::shared_ptr<const Message>> all;
  for (const auto& message : state.network) {
    if (message->to_coordinator) {
      all.push_back(message);
    }
  }
  const auto add = [&](std::vector<std::shared_ptr<const Message>> messages) {
    std::string name = "report of";
    for (const auto& message : messages) {
      name += " " + std::to_string(message->replica);
    }
    add_event(
        state, name,
        [this, messages = std::move(messages)](State& next) {
          return hear(next, messages);
        },
        choices);
  };
  for (const auto& message : all) {
    add({message});
  }
  if (!options_.reports_together || all.size() < 2) {
    return;
  }
  for (const auto& first : all) {
    for (const auto& second : all) {
      if (first->replica != second->replica) {
        add({first, second});
      }
    }
  }
  if (all.size() > 2) {
    add(all);
  }
}

void Model::add_coordinator_choices(
    const State& state, std::vector<Choice>& choices) const {
  if (!state.coordinator) {
    choices.push_back({"coordinator starts", [this](State& next) {
                         start_coordinator(next);
                       }});
    return;
  }
  add_reports(state, choices);
  const auto dead = dead_links(state, state.coordinator->history().members);
  if (state.coordinator->stage() == EpochStage::kRunning && !dead.empty()) {
    add_event(
        state, "dead links are found",
        [dead](State& next) {
          return next.coordinator->links_fail(dead, "dead", next.now);
        },
        choices);
  }
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    const auto id = static_cast<ReplicaId>(r);
    // A death is noticed at any time after it.
    const auto& process = *state.replicas[r];
    for (Incarnation old = life(id, 1); old <= process.incarnation; ++old) {
      if (old == process.incarnation && process.alive && !process.cut) {
        continue;
      }
      if (ModelAccess::is_there(*state.coordinator, id, old)) {
        add_event(
            state, "loss of " + std::to_string(r) + " is noticed",
            [id, old](State& next) {
              std::erase_if(next.network, [&](const auto& one) {
                return one->to_coordinator && one->incarnation == old;
              });
              return next.coordinator->lost(id, old, "", next.now);
            },
            choices);
      }
    }
  }
}

void Model::add_orders(
    const State& state, std::size_t r, std::vector<Choice>& choices) const {
  for (const auto& message : state.network) {
    if (!message->to_coordinator && message->replica == r) {
      choices.push_back(
          {"order to " + std::to_string(r), [this, message](State& next) {
             std::erase(next.network, message);
             deliver(next, *message);
           }});
    }
  }
}

// A replica that has what this one lacks: the target, or what came after it.
static const Process* donor_for(
    const State& state, const Process& self, const StateId& target) {
  const Process* best = nullptr;
  for (const auto& donor : state.replicas) {
    const auto& held = donor->protocol.held();
    if (!donor->alive || donor->cut || !held || held == self.protocol.held() ||
        held->step < target.step) {
      continue;
    }
    if (best == nullptr || held == target) {
      best = &*donor;
    }
  }
  return best;
}

void Model::computed_badly(State& state, Process& self) const {
  const auto task = self.computing.front();
  self.computing.erase(self.computing.begin());
  if (options_.mutation == Mutation::kBadGradientsCount) {
    self.gradients = Contribution{task.serial, self.bits, task.samples, true};
    contribute(state, self);
  }
  carry_out(
      state, self,
      self.protocol.bad_gradients(task.serial, {"not finite", false}));
}

std::uint64_t Model::applied_sum(Process& self) const {
  const auto prepared = std::exchange(self.prepared, std::nullopt);
  const bool is_right = prepared &&
      (options_.mutation == Mutation::kApplyPreparedSums ||
       prepared->first == self.applying->attempt);
  return is_right ? prepared->second : self.sum;
}

void Model::add_what_it_does(
    const State& state, std::size_t r, std::vector<Choice>& choices) const {
  const auto& self = *state.replicas[r];
  const auto add = [&](const char* what, auto tasks_of) {
    choices.push_back(
        {std::to_string(r) + what, [this, r, tasks_of](State& next) {
           carry_out(next, *next.replicas[r], tasks_of(*next.replicas[r]));
         }});
  };
  if (!self.computing.empty() && !done(state)) {
    choices.push_back(
        {std::to_string(r) + " has computed",
         [this, r](State& next) { computed(next, *next.replicas[r]); }});
  }
  const auto vote =
      options_.prepares ? self.protocol.report().vote : std::nullopt;
  if (vote && !self.applying &&
      !(self.prepared && self.prepared->first == vote->attempt)) {
    add(" has copied its sum", [attempt = vote->attempt](Process& one) {
      one.prepared = {attempt, one.sum};
      return Tasks();
    });
  }
  if (self.applying) {
    add(" has applied", [this](Process& one) {
      one.bits = mix64(one.bits ^ applied_sum(one));
      one.gradients.reset();
      return one.protocol.applied(std::exchange(one.applying, {})->result);
    });
  }
  if (self.catching_up && !self.cut) {
    const auto& target = self.catching_up->target;
    if (const auto* donor = donor_for(state, self, target)) {
      add(" has fetched",
          [bits = donor->bits, held = *donor->protocol.held(),
           as_named = options_.mutation ==
               Mutation::kHoldUnnamedStates](Process& one) {
            one.catching_up.reset();
            one.fetched = {held, bits};
            return one.protocol.fetched(
                as_named ? one.protocol.view().canonical : held);
          });
    } else if (target != self.protocol.view().canonical) {
      add(" cannot fetch", [](Process& one) {
        one.catching_up.reset();
        return one.protocol.fetch_failed();
      });
    }
  }
  if (self.installing && self.computing.empty()) {
    add(" has installed", [](Process& one) {
      const auto serial = std::exchange(one.installing, {})->serial;
      const auto [held, bits] = *std::exchange(one.fetched, {});
      one.bits = bits;
      one.gradients.reset();
      return one.protocol.installed(serial, held);
    });
  }
}

void Model::add_what_its_ring_does(
    const State& state, std::size_t r, std::vector<Choice>& choices) const {
  const auto& self = *state.replicas[r];
  const auto add = [&](const char* what, auto tasks_of) {
    choices.push_back(
        {std::to_string(r) + what, [this, r, tasks_of](State& next) {
           carry_out(next, *next.replicas[r], tasks_of(*next.replicas[r]));
         }});
  };
  if (self.joining && !self.cut) {
    const auto& [epoch, members] = *self.joining;
    const auto suspicion = suspicion_of(state, self, epoch, members);
    if (!suspicion || suspicion->reason != "dead") {
      add(" has joined", [](Process& one) {
        return one.protocol.joined(std::exchange(one.joining, {})->epoch);
      });
    }
    if (suspicion) {
      add(" cannot join", [suspicion](Process& one) {
        one.joining.reset();
        return one.protocol.peer_lost(*suspicion);
      });
    }
  }
  if (self.reducing && !self.cut && sum_of(state, self) &&
      dead_links(state, self.ring).empty()) {
    choices.push_back(
        {std::to_string(r) + " has reduced",
         [this, r](State& next) { reduced(next, *next.replicas[r]); }});
  }
  const auto& view = self.protocol.view();
  if (view.members.empty() ||
      ModelAccess::has_left(self.protocol, view.epoch)) {
    return;
  }
  // A connected replica does not notice by itself that a link is dead.
  const auto suspicion = suspicion_of(state, self, view.epoch, view.members);
  if (suspicion && suspicion->reason != "dead") {
    add(" loses a peer", [suspicion](Process& one) {
      return one.protocol.peer_lost(*suspicion);
    });
  }
}

void Model::add_replica_choices(
    const State& state,
    std::size_t r,
    bool beats,
    std::vector<Choice>& choices) const {
  const auto& self = *state.replicas[r];
  if (!self.alive) {
    choices.push_back(
        {std::to_string(r) + " starts anew", [this, r](State& next) {
           auto& one = *next.replicas[r];
           const auto id = static_cast<ReplicaId>(r);
           const auto count = one.incarnation % 100 + 1;
           one = {
               .protocol = Replica(identity(id, count)),
               .incarnation = life(id, count)};
           send_report(next, one);
         }});
    return;
  }
  if (self.cut) {
    choices.push_back(
        {std::to_string(r) + " is reached again", [this, r](State& next) {
           next.replicas[r]->cut = false;
           send_report(next, *next.replicas[r]);
         }});
  }
  const auto id = static_cast<ReplicaId>(r);
  if (state.coordinator && !self.cut &&
      ModelAccess::hangs(*state.coordinator, id, self.incarnation) &&
      ModelAccess::last_report(*state.coordinator, id).progress.serial ==
          self.moves) {
    choices.push_back(
        {std::to_string(r) + " moves again", [this, r](State& next) {
           ++next.replicas[r]->moves;
           send_report(next, *next.replicas[r]);
         }});
  }
  add_what_it_does(state, r, choices);
  add_what_its_ring_does(state, r, choices);
  add_orders(state, r, choices);
  // Heartbeats come regularly, so one may be sent whenever none is under way.
  if (state.coordinator && !self.cut && beats &&
      !is_sent(state, report_of(self))) {
    choices.push_back({std::to_string(r) + " reports", [this, r](State& next) {
                         send_report(next, *next.replicas[r]);
                       }});
  }
}

void Model::add_coordinator_faults(
    const State& state, std::vector<Choice>& choices) const {
  if (state.coordinator && state.left.coordinator_pauses > 0) {
    choices.push_back({"the coordinator is paused", [](State& next) {
                         pause_coordinator(next);
                       }});
  }
  if (state.coordinator && state.left.log_losses > 0) {
    choices.push_back({"the coordinator dies with its log", [](State& next) {
                         --next.left.log_losses;
                         end_coordinator(next);
                         *next.disk = {};
                       }});
  }
  if (!state.former) {
    return;
  }
  const auto add = [&](const std::string& name, auto event) {
    choices.push_back({name, [this, event](State& next) {
                         carry_out_former(next, event(next));
                       }});
  };
  add("the former coordinator wakes",
      [](State& next) { return next.former->tick(next.now); });
  for (const auto& message : state.network) {
    if (message->to_coordinator) {
      add("the former coordinator hears " + std::to_string(message->replica),
          [message](State& next) {
            return next.former->received(message->report, next.now);
          });
    }
  }
}

void Model::add_replica_faults(
    const State& state, std::size_t r, std::vector<Choice>& choices) const {
  const auto& self = *state.replicas[r];
  if (!self.alive) {
    return;
  }
  const auto add = [&](const std::string& name, auto fault) {
    choices.push_back({name, [this, r, fault](State& next) {
                         fault(next, *next.replicas[r]);
                       }});
  };
  if (state.left.crashes > 0) {
    add(std::to_string(r) + " is killed", [](State& next, Process& one) {
      --next.left.crashes;
      one.alive = false;
    });
  }
  if (state.left.partitions > 0 && !self.cut) {
    add(std::to_string(r) + " is cut off", [r](State& next, Process& one) {
      --next.left.partitions;
      one.cut = true;
      std::erase_if(next.network, [&](const auto& message) {
        return message->replica == r;
      });
    });
  }
  if (self.protocol.view().term == 0) {
    return;
  }
  if (state.left.damages > 0) {
    add(std::to_string(r) + " is damaged", [this](State& next, Process& one) {
      --next.left.damages;
      one.bits = ~one.bits;
      one.applying.reset();
      one.installing.reset();
      one.catching_up.reset();
      carry_out(next, one, one.protocol.damaged());
    });
  }
  if (state.left.bad_gradients > 0 && !self.computing.empty()) {
    add(std::to_string(r) + " has computed what is of no use",
        [this](State& next, Process& one) {
          --next.left.bad_gradients;
          computed_badly(next, one);
        });
  }
  if (state.left.leaves > 0) {
    add(std::to_string(r) + " wants to leave",
        [this](State& next, Process& one) {
          --next.left.leaves;
          carry_out(next, one, one.protocol.leave());
        });
  }
}

void Model::add_link_cuts(
    const State& state, std::vector<Choice>& choices) const {
  const auto count = static_cast<ReplicaId>(state.replicas.size());
  for (ReplicaId from = 0; state.left.link_cuts > 0 && from < count; ++from) {
    for (ReplicaId to = 0; to < count; ++to) {
      if (from != to && !state.cut_links.contains({from, to})) {
        choices.push_back(
            {str("the link from ", from, " to ", to, " is cut"),
             [from, to](State& next) {
               --next.left.link_cuts;
               next.cut_links.insert({from, to});
             }});
      }
    }
  }
}

void Model::add_slow_links(const State& state, std::vector<Choice>& choices) {
  const auto count = static_cast<ReplicaId>(state.replicas.size());
  if (state.left.slow_links == 0 || !state.coordinator) {
    return;
  }
  for (ReplicaId one = 0; one < count; ++one) {
    for (ReplicaId other = one + 1; other < count; ++other) {
      choices.push_back(
          {str("the link between ", one, " and ", other, " is found slow"),
           [one, other](State& next) {
             --next.left.slow_links;
             ModelAccess::find_slow(*next.coordinator, one, other);
           }});
    }
  }
}

void Model::add_hangs(const State& state, std::vector<Choice>& choices) const {
  if (state.left.hangs == 0 || !state.coordinator) {
    return;
  }
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    const auto id = static_cast<ReplicaId>(r);
    const auto incarnation = state.replicas[r]->incarnation;
    if (state.coordinator->counts(id, incarnation) &&
        !ModelAccess::hangs(*state.coordinator, id, incarnation)) {
      choices.push_back(
          {std::to_string(r) + " is found to hang",
           [this, id, incarnation](State& next) {
             --next.left.hangs;
             auto decisions =
                 next.coordinator->hangs(id, incarnation, "", next.now);
             const auto all = decisions.size();
             carry_out(next, std::move(decisions), all);
           }});
    }
  }
}

void Model::add_faults(const State& state, std::vector<Choice>& choices) const {
  add_link_cuts(state, choices);
  add_slow_links(state, choices);
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    add_replica_faults(state, r, choices);
    const auto id = static_cast<ReplicaId>(r);
    if (state.left.false_losses > 0 && state.coordinator &&
        state.replicas[r]->alive) {
      choices.push_back(
          {"connection to " + std::to_string(r) + " ends",
           [this, r, id](State& next) {
             --next.left.false_losses;
             auto decisions = next.coordinator->lost(
                 id, std::as_const(next).replicas[r]->incarnation, "",
                 next.now);
             const auto all = decisions.size();
             carry_out(next, std::move(decisions), all);
           }});
    }
  }
  add_hangs(state, choices);
  for (const auto& message : state.network) {
    if (state.left.lost_messages > 0) {
      choices.push_back({"a message is lost", [message](State& next) {
                           --next.left.lost_messages;
                           std::erase(next.network, message);
                         }});
    }
    if (state.left.repeated_messages > 0 && !message->to_coordinator) {
      choices.push_back(
          {"order to " + std::to_string(message->replica) + ", and again later",
           [this, message](State& next) {
             --next.left.repeated_messages;
             deliver(next, *message);
           }});
    }
  }
  if (state.left.timeouts > 0 && is_informed(state)) {
    add_event(
        state, "a long time passes",
        [](State& next) {
          --next.left.timeouts;
          next.now += kExpiry;
          return next.coordinator->tick(next.now);
        },
        choices);
  }
}

// Timeouts are longer than a report takes, and longer than it takes to notice a loss.
bool Model::is_informed(const State& state) {
  if (!state.coordinator) {
    return false;
  }
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    const auto& one = *state.replicas[r];
    const auto id = static_cast<ReplicaId>(r);
    for (Incarnation old = life(id, 1); old < one.incarnation; ++old) {
      if (state.coordinator->counts(id, old)) {
        return false;
      }
    }
    if (state.coordinator->counts(id, one.incarnation) &&
        (!one.alive || one.cut ||
         !(ModelAccess::last_report(*state.coordinator, id) == said_by(one)))) {
      return false;
    }
  }
  return std::none_of(
      state.network.begin(), state.network.end(),
      [](const auto& message) { return message->to_coordinator; });
}

void Model::wait(State& state) const {
  if (is_informed(state)) {
    state.now += kExpiry;
    auto decisions = state.coordinator->tick(state.now);
    const auto all = decisions.size();
    carry_out(state, std::move(decisions), all);
  }
}

std::vector<Model::Choice> Model::choices(const State& state) const {
  std::vector<Choice> all;
  if (settled(state) || state.disk->epoch.number > options_.epochs) {
    return all;
  }
  // Without losses each thing is said only once, when it happens.
  all = progress(
      state,
      options_.lost_messages > 0 || options_.coordinator_crashes > 0 ||
          options_.coordinator_pauses > 0 || options_.false_losses > 0);
  add_coordinator_faults(state, all);
  add_faults(state, all);
  return all;
}

std::vector<Model::Choice> Model::progress(
    const State& state, bool beats) const {
  std::vector<Choice> all;
  add_coordinator_choices(state, all);
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    add_replica_choices(state, r, beats, all);
  }
  return all;
}

void Model::written(State& state, const Record& record) const {
  if (const auto* commit = std::get_if<CommitRecord>(&record)) {
    check_commit(state, *commit);
    state.tip = commit->commit.result;
    state.committed.insert(state.tip);
  } else if (const auto* back = std::get_if<RollbackRecord>(&record)) {
    check_rollback(state, *back);
    state.tip = back->canonical;
  } else if (const auto* recovered = std::get_if<RecoveryRecord>(&record)) {
    check_recovery(state, *recovered);
    state.tip = recovered->canonical();
  } else if (const auto* epoch = std::get_if<EpochRecord>(&record);
             epoch != nullptr && options_.log_losses > 0 &&
             std::as_const(state).disk->past.empty()) {
    check_forgotten(state, epoch->base);
    state.tip = epoch->base;
    state.reductions->clear();  // Nobody remembers anything of that run.
  }
  append(*state.disk, record);
}

// The run goes on from the last commit, or from the one before if the last one is repeated. It goes
// back further only if no replica has the state any more.
void Model::check_recovery(const State& state, const RecoveryRecord& record) {
  if (!state.committed.contains(record.canonical())) {
    throw Violation{
        "S2: " + text_of(record.canonical()) +
        " is recovered, which was not committed"};
  }
  // If every replica that remembers a rollback is gone, it did not happen.
  const bool leads_on = record.first == state.tip ||
      std::any_of(record.commits.begin(), record.commits.end(),
                  [&](const Commit& one) { return one.result == state.tip; });
  if (!leads_on) {
    check_forgotten(state, record.canonical());
  }
}

void Model::check_forgotten(const State& state, const StateId& next) {
  for (const auto& one : state.replicas) {
    if (next != state.tip && one->alive && one->protocol.held() == state.tip) {
      throw Violation{
          "S8: " + text_of(state.tip) +
          " is forgotten while a replica holds it"};
    }
  }
}

void Model::check(const State& state) const {
  std::map<StateId, std::uint64_t> bits;
  for (const auto& one : state.replicas) {
    if (!one->alive || !one->protocol.held()) {
      continue;
    }
    const auto& held = *one->protocol.held();
    const auto [known, added] = bits.emplace(held, one->bits);
    if (known->second != one->bits) {
      throw Violation{
          "S3: two replicas hold " + text_of(held) +
          " with different parameters"};
    }
    if (!state.committed.contains(held)) {
      throw Violation{
          "S2: a replica holds " + text_of(held) + ", which was not committed"};
    }
  }
}

}  // namespace sherd::ft
