// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/model_world_testing.h"

namespace sherd::ft {

Decisions Model::hear(State& state, Report report) const {
  auto& coordinator = *state.coordinator;
  const auto& history = coordinator.history();
  if (options_.mutation == Mutation::kStepIsIdentity && report.held &&
      history.canonical && report.held->step == history.canonical->step) {
    report.held = history.canonical;
  }
  return coordinator.heard(report, state.now);
}

void Model::deliver(State& state, const Message& message) const {
  auto& self = state.replicas[message.replica];
  if (!self.alive || self.incarnation != message.incarnation) {
    return;
  }
  auto order = message.order;
  if (options_.mutation == Mutation::kStepIsIdentity && self.protocol.held() &&
      !self.protocol.vote() &&
      self.protocol.held()->step == order.canonical.step) {
    order.canonical = *self.protocol.held();
  }
  carry_out(state, self, self.protocol.heard(order));
}

void Model::add_coordinator_choices(
    const State& state, std::vector<Choice>& choices) const {
  if (!state.coordinator) {
    choices.push_back({"coordinator starts", [this](State& next) {
                         start_coordinator(next);
                       }});
    return;
  }
  for (const auto& message : state.network) {
    if (message.to_coordinator) {
      add_event(
          state, str("report of ", message.replica),
          [this, message](State& next) {
            // Connections of former lives end where a new one begins.
            std::erase_if(next.network, [&](const auto& one) {
              return one.words == message.words ||
                  (one.to_coordinator && one.replica == message.replica &&
                   one.incarnation < message.incarnation);
            });
            return hear(next, message.report);
          },
          choices);
    }
  }
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    const auto id = static_cast<ReplicaId>(r);
    // A death is noticed at any time after it.
    for (Incarnation old = life(id, 1); old <= state.replicas[r].incarnation;
         ++old) {
      if (old == state.replicas[r].incarnation && state.replicas[r].alive) {
        continue;
      }
      if (state.coordinator->counts(id, old)) {
        add_event(
            state, str("loss of ", r, " is noticed"),
            [id, old](State& next) {
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
    if (!message.to_coordinator && message.replica == r) {
      choices.push_back({str("order to ", r), [this, message](State& next) {
                           std::erase_if(next.network, [&](const auto& one) {
                             return one.words == message.words;
                           });
                           deliver(next, message);
                         }});
    }
  }
}

void Model::add_replica_choices(
    const State& state,
    std::size_t r,
    bool beats,
    std::vector<Choice>& choices) const {
  const auto& self = state.replicas[r];
  if (!self.alive) {
    choices.push_back({str(r, " starts anew"), [this, r](State& next) {
                         auto& one = next.replicas[r];
                         const auto id = static_cast<ReplicaId>(r);
                         const auto incarnation = one.incarnation + 1;
                         one = {
                             .protocol =
                                 Replica(id, incarnation, first_state()),
                             .incarnation = incarnation};
                         send_report(next, one);
                       }});
    return;
  }
  const auto add = [&](const char* what, auto tasks_of) {
    choices.push_back({str(r, what), [this, r, tasks_of](State& next) {
                         auto& one = next.replicas[r];
                         carry_out(next, one, tasks_of(next, one));
                       }});
  };
  if (self.computing) {
    add(" has computed", [](State&, Process& one) {
      return one.protocol.computed(*std::exchange(one.computing, {}));
    });
  }
  if (self.joining) {
    add(" has joined", [](State&, Process& one) {
      return one.protocol.joined(*std::exchange(one.joining, {}));
    });
  }
  if (self.fetching) {
    for (const auto& donor : state.replicas) {
      if (donor.alive && donor.protocol.held() == self.fetching) {
        add(" has fetched", [bits = donor.bits](State&, Process& one) {
          one.bits = bits;
          return one.protocol.fetched(*std::exchange(one.fetching, {}));
        });
        break;
      }
    }
  }
  if (self.reducing && sum_of(state, *self.reducing)) {
    choices.push_back({str(r, " has reduced"), [this, r](State& next) {
                         reduced(next, next.replicas[r]);
                       }});
  }
  if (self.reducing && can_fail(state, self)) {
    add(" fails to reduce", [](State&, Process& one) {
      const auto epoch = one.reducing->attempt.epoch;
      one.reducing.reset();
      return one.protocol.reduce_failed(epoch, {epoch, 0, "lost"});
    });
  }
  add_orders(state, r, choices);
  // Every so often, and so whenever it is not on its way already.
  if (state.coordinator && !is_sent(state, report_of(self)) && beats) {
    choices.push_back({str(r, " reports"), [this, r](State& next) {
                         send_report(next, next.replicas[r]);
                       }});
  }
}

void Model::add_faults(const State& state, std::vector<Choice>& choices) const {
  for (std::size_t r = 0; r < state.replicas.size(); ++r) {
    const auto id = static_cast<ReplicaId>(r);
    if (state.crashes > 0 && state.replicas[r].alive) {
      choices.push_back({str(r, " is killed"), [r](State& next) {
                           --next.crashes;
                           next.replicas[r].alive = false;
                         }});
    }
    if (state.false_losses > 0 && state.coordinator &&
        state.replicas[r].alive) {
      choices.push_back(
          {str("connection to ", r, " ends"), [this, r, id](State& next) {
             --next.false_losses;
             auto decisions = next.coordinator->lost(
                 id, next.replicas[r].incarnation, "", next.now);
             const auto all = decisions.size();
             carry_out(next, std::move(decisions), all);
           }});
    }
  }
  for (const auto& message : state.network) {
    if (state.lost_messages > 0) {
      choices.push_back(
          {"a message is lost", [words = message.words](State& next) {
             --next.lost_messages;
             std::erase_if(next.network, [&](const auto& one) {
               return one.words == words;
             });
           }});
    }
    if (state.repeated_messages > 0 && !message.to_coordinator) {
      choices.push_back(
          {str("order to ", message.replica, ", and again later"),
           [this, message](State& next) {
             --next.repeated_messages;
             deliver(next, message);
           }});
    }
  }
  // Longer than any report takes.
  const bool reported = std::none_of(
      state.network.begin(), state.network.end(),
      [](const auto& message) { return message.to_coordinator; });
  if (state.timeouts > 0 && state.coordinator && reported) {
    add_event(
        state, "a long time passes",
        [](State& next) {
          --next.timeouts;
          next.now += kExpiry;
          return next.coordinator->tick(next.now);
        },
        choices);
  }
}

std::vector<Model::Choice> Model::choices(const State& state) const {
  std::vector<Choice> all;
  if (done(state) || state.disk.epoch.number > options_.epochs) {
    return all;
  }
  // Without losses each thing is said once, when it happens.
  all = progress(
      state,
      options_.lost_messages > 0 || options_.coordinator_crashes > 0 ||
          options_.false_losses > 0);
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

void Model::check(const State& state) const {
  std::map<StateId, std::uint64_t> bits;
  for (const auto& one : state.replicas) {
    if (!one.alive || !one.protocol.held()) {
      continue;
    }
    const auto& held = *one.protocol.held();
    const auto [known, added] = bits.emplace(held, one.bits);
    if (known->second != one.bits) {
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
