// SPDX-License-Identifier: Apache-2.0
//
// The world that the model checker explores: replicas with their parameters, the
// coordinator and its log, messages under way, and what each can do next. Thread
// rule: one thread; states are values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/hash.h"
#include "ft/protocol/model_testing.h"
#include "ft/protocol/model_words_testing.h"
#include "ft/protocol/shared_part_testing.h"

namespace sherd::ft {

inline constexpr Duration kTimeout = std::chrono::seconds(1);
inline constexpr Instant kExpiry = std::chrono::hours(1);

// What a replica contributes to a reduction.
struct Contribution {
  std::uint64_t serial = 0;  // The task it was computed for.
  std::uint64_t bits = 0;    // The parameters it was computed from.
  std::vector<SampleRange> samples;
  bool bad = false;
};

// One incarnation of a replica.
struct Process {
  Replica protocol;
  Incarnation incarnation = 0;
  bool alive = true;
  bool cut = false;         // Cut off from everybody.
  std::uint64_t moves = 0;  // How often it has moved again after a hang.
  std::uint64_t bits = 1;   // What its parameters really are.
  std::uint64_t sum = 0;    // What it reduced last.
  // The copied part of a sum, which is applied if the sum is committed.
  std::optional<std::pair<Attempt, std::uint64_t>> prepared = {};
  // The task under way, and the one requested meanwhile.
  std::vector<ComputeTask> computing = {};
  std::optional<Contribution> gradients = {};
  std::optional<EpochMembers> joining = {};
  std::optional<ReduceTask> reducing = {};
  std::vector<Member> ring = {};  // The members of that epoch.
  std::optional<Commit> applying = {};
  std::optional<CatchUpTask> catching_up = {};
  // The fetched state, and the parameters that it really consists of.
  std::optional<std::pair<StateId, std::uint64_t>> fetched = {};
  std::optional<InstallTask> installing = {};
};

// A sum of contributions, in ring order.
class Sum {
 public:
  void add(const Contribution& part) {
    hash_.add(part.bits);
    for (const auto& range : part.samples) {
      hash_.add(static_cast<std::uint64_t>(range.begin));
      hash_.add(static_cast<std::uint64_t>(range.end));
    }
  }
  std::uint64_t value() const { return hash_.value(); }

 private:
  Hash64 hash_;
};

struct Message {
  bool to_coordinator = false;
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  Report report;
  RunView view;
  StateWords words;  // The message's identity, without texts.
  // The fingerprint of the words, once the message is sent.
  Fingerprint fingerprint{};
};

using Reductions = std::map<Attempt, std::map<ReplicaId, Contribution>>;

struct State {
  Shared<Coordinator> coordinator;
  Shared<Coordinator> former;  // The coordinator that was paused and replaced.
  Shared<History> disk = History();
  std::vector<Shared<Process>> replicas;
  // Sorted by words, each once.
  std::vector<std::shared_ptr<const Message>> network;
  Shared<Reductions> reductions = Reductions();
  // What an observer sees regardless of the log: all states ever committed, and the last one that
  // was not rolled back.
  std::set<StateId> committed;
  StateId tip;
  ModelOptions left;  // How many faults of each kind may still happen.
  // Pairs of the replica that connects and the one it connects to.
  std::set<std::pair<ReplicaId, ReplicaId>> cut_links;
  Instant now{};
};

inline StateId first_state() { return {0, first_lineage(1, 1)}; }

struct Violation {
  std::string what;
};

class Model {
 public:
  explicit Model(const ModelOptions& options) : options_(options) {}

  // Applies an action to a copy of the state; the result is empty if the action is not enabled.
  using Action = std::function<void(State&)>;
  struct Choice {
    std::string name;
    Action action;
  };

  State first() const {
    State state;
    state.left = options_;
    state.committed = {first_state()};
    state.tip = first_state();
    for (int r = 0; r < options_.replicas; ++r) {
      const auto id = static_cast<ReplicaId>(r);
      state.replicas.emplace_back(Process{
          .protocol = Replica(identity(id, 1)), .incarnation = life(id, 1)});
      send_report(state, *state.replicas.back());
    }
    start_coordinator(state);
    return state;
  }

  Fingerprint fingerprint(const State& state) const {
    StateWords words;
    if (state.coordinator) {
      add(words, state.coordinator);
    } else {
      add(words, state.disk);
    }
    words.push_back(state.coordinator ? 1 : 0);
    words.push_back(state.former ? 1 : 0);
    if (state.former) {
      add(words, state.former);
    }
    for (const auto& one : state.replicas) {
      add(words, one);
    }
    for (const auto& message : state.network) {
      add(words, message->fingerprint);
    }
    add(words, state.reductions);
    const auto left = {
        state.left.crashes,
        state.left.coordinator_crashes,
        state.left.coordinator_pauses,
        state.left.log_losses,
        state.left.damages,
        state.left.bad_gradients,
        state.left.leaves,
        state.left.partitions,
        state.left.false_losses,
        state.left.hangs,
        state.left.link_cuts,
        state.left.slow_links,
        state.left.lost_messages,
        state.left.repeated_messages,
        state.left.timeouts};
    for (const int one : left) {
      words.push_back(static_cast<std::uint64_t>(one));
    }
    for (const auto& [from, to] : state.cut_links) {
      words.insert(words.end(), {from, to});
    }
    ModelAccess::add(words, state.tip);
    return fingerprint_of(words);
  }

  std::vector<Choice> choices(const State& state) const;
  // All choices except faults.
  std::vector<Choice> progress(const State& state, bool beats) const;
  void check(const State& state) const;
  // Waits until every timeout has ended.
  void wait(State& state) const;
  bool done(const State& state) const {
    const auto& canonical = state.disk->canonical;
    return canonical && canonical->step >= options_.steps;
  }
  // All steps are committed and everybody knows it.
  bool settled(const State& state) const {
    return done(state) && state.network.empty() &&
        std::all_of(
               state.replicas.begin(), state.replicas.end(),
               [&](const auto& one) {
                 return !one->alive || one->protocol.held() == state.tip;
               });
  }

 private:
  static Incarnation life(ReplicaId replica, Incarnation count) {
    return (Incarnation{replica} + 1) * 100 + count;
  }
  static ReplicaIdentity identity(ReplicaId replica, Incarnation count) {
    return {
        .replica = replica,
        .incarnation = life(replica, count),
        .config = 1,
        .held = first_state()};
  }

  static void add(StateWords& words, const Fingerprint& fingerprint) {
    words.insert(words.end(), {fingerprint.high, fingerprint.low});
  }
  template <typename T>
  static void add(StateWords& words, const Shared<T>& part) {
    add(words, part.fingerprint([](StateWords& of_part, const T& value) {
      add(of_part, value);
    }));
  }
  static void add(StateWords& words, const Coordinator& all) {
    ModelAccess::add(words, all);
  }
  static void add(StateWords& words, const History& history) {
    ModelAccess::add(words, history);
  }
  static void add(StateWords& words, const Reductions& reductions) {
    for (const auto& [attempt, parts] : reductions) {
      ModelAccess::add(words, attempt);
      for (const auto& [replica, part] : parts) {
        words.push_back(replica);
        add(words, part);
      }
    }
  }
  static void add(StateWords& words, const Contribution& part) {
    words.insert(words.end(), {part.serial, part.bits, part.bad ? 1U : 0U});
    ModelAccess::add(words, part.samples);
  }
  static void add(StateWords& words, const Process& one) {
    words.insert(
        words.end(),
        {one.incarnation, one.alive ? 1U : 0U, one.cut ? 1U : 0U, one.bits,
         one.sum, one.moves});
    if (!one.alive) {
      return;
    }
    ModelAccess::add(words, one.protocol);
    for (const auto& task : one.computing) {
      words.push_back(task.serial);
    }
    words.push_back(one.prepared ? 1 : 0);
    if (one.prepared) {
      ModelAccess::add(words, one.prepared->first);
      words.push_back(one.prepared->second);
    }
    words.push_back(one.gradients ? 1 : 0);
    if (one.gradients) {
      add(words, *one.gradients);
    }
    words.push_back(one.joining ? one.joining->epoch.number : 0);
    words.push_back(one.reducing ? 1 : 0);
    if (one.reducing) {
      ModelAccess::add(words, one.reducing->attempt);
    }
    ModelAccess::add(words, one.applying);
    words.push_back(one.catching_up ? 1 : 0);
    if (one.catching_up) {
      ModelAccess::add(words, one.catching_up->target);
    }
    words.push_back(one.installing ? one.installing->serial : 0);
    if (one.fetched) {
      ModelAccess::add(words, one.fetched->first);
      words.push_back(one.fetched->second);
    }
  }

  // ---- messages ----

  void put(State& state, Message message) const {
    auto& network = state.network;
    // The reports of one connection come in order, and the last one says everything.
    if (options_.latest_messages || message.to_coordinator) {
      std::erase_if(network, [&](const auto& one) {
        return one->to_coordinator == message.to_coordinator &&
            one->replica == message.replica &&
            one->incarnation == message.incarnation;
      });
    }
    const auto place = std::lower_bound(
        network.begin(), network.end(), message.words,
        [](const auto& one, const auto& words) { return one->words < words; });
    if (place == network.end() || (*place)->words != message.words) {
      message.fingerprint = fingerprint_of(message.words);
      network.insert(
          place, std::make_shared<const Message>(std::move(message)));
    }
  }
  static bool is_sent(const State& state, const Message& message) {
    return std::any_of(
        state.network.begin(), state.network.end(),
        [&](const auto& one) { return one->words == message.words; });
  }
  void send_report(State& state, const Process& from) const {
    if (!from.cut) {
      put(state, report_of(from));
    }
  }
  static Report said_by(const Process& from) {
    auto report = from.protocol.report();
    report.progress.serial = from.moves;
    return report;
  }
  static Message report_of(const Process& from) {
    auto report = said_by(from);
    Message message{
        .to_coordinator = true,
        .replica = report.replica,
        .incarnation = from.incarnation,
        .report = std::move(report),
        .view = {},
        .words = {1}};
    ModelAccess::add(message.words, message.report);
    return message;
  }
  void send_order(State& state, const SendView& tell) const {
    if (std::as_const(state).replicas[tell.replica]->cut) {
      return;
    }
    Message message{
        .to_coordinator = false,
        .replica = tell.replica,
        .incarnation = tell.incarnation,
        .report = {},
        .view = *tell.view,
        .words = {2, tell.replica, tell.incarnation}};
    ModelAccess::add(message.words, *tell.view);
    put(state, std::move(message));
  }

  // ---- the coordinator ----

  CoordinatorOptions coordinator_options(const State& state) const {
    CoordinatorOptions options;
    // Each log is of another run.
    options.run = 1 +
        static_cast<std::uint64_t>(options_.log_losses - state.left.log_losses);
    options.recovers = options.run > 1;
    options.replicas_min = options_.replicas_min;
    options.replicas_start =
        options_.mutation == Mutation::kRecoverFromSome ? 1 : options_.replicas;
    options.start_timeout = kTimeout;
    options.settle = Duration(0);
    options.join_timeout = kTimeout;
    options.hold_time = kTimeout;
    options.backoff = kTimeout;
    options.backoff_max = kTimeout;
    options.reconnect_timeout = kTimeout;
    options.vote_timeout = kTimeout;
    return options;
  }

  // Carries out the first `count` decisions; if there are more, the coordinator is then killed.
  void carry_out(
      State& state, CoordinatorDecisions decisions, std::size_t count) const {
    if (options_.mutation == Mutation::kCommitBeforeTheLog) {
      std::stable_partition(
          decisions.begin(), decisions.end(),
          [](const CoordinatorDecision& one) {
            return std::holds_alternative<SendView>(one.what);
          });
    }
    for (std::size_t i = 0; i < std::min(count, decisions.size()); ++i) {
      if (const auto* tell = std::get_if<SendView>(&decisions[i].what)) {
        send_order(state, *tell);
      } else if (const auto* record = std::get_if<Record>(&decisions[i].what)) {
        written(state, *record);
      }
    }
    if (count < decisions.size()) {
      kill_coordinator(state);
    }
  }

  void written(State& state, const Record& record) const;

  // Carries out the decisions of a coordinator that was replaced without knowing it. It ends where
  // the log refuses its record.
  void carry_out_former(
      State& state, const CoordinatorDecisions& decisions) const {
    const auto term = state.former->history().term;
    for (const auto& decision : decisions) {
      if (const auto* tell = std::get_if<SendView>(&decision.what)) {
        send_order(state, *tell);
        continue;
      }
      if (std::holds_alternative<DetectedFault>(decision.what)) {
        continue;
      }
      const auto newest = std::as_const(state).disk->term;
      if (newest > term && options_.mutation != Mutation::kLogTakesOldTerms) {
        state.former.reset();
        return;
      }
      state.disk->term = term;
      written(state, std::get<Record>(decision.what));
      state.disk->term = newest;
    }
  }

  static void pause_coordinator(State& state) {
    --state.left.coordinator_pauses;
    state.former = std::move(state.coordinator);
    end_coordinator(state);
  }
  static void kill_coordinator(State& state) {
    --state.left.coordinator_crashes;
    end_coordinator(state);
  }
  static void end_coordinator(State& state) {
    state.coordinator.reset();
    std::erase_if(state.network, [](const auto& message) {
      return message->to_coordinator;  // Its connections are gone.
    });
  }

  void start_coordinator(State& state) const {
    if (options_.mutation == Mutation::kForgottenLog && state.disk->term > 0) {
      const auto term = state.disk->term;
      *state.disk = {};
      state.disk->term = term;
      state.disk->run = 1;
    }
    CoordinatorDecisions decisions;
    state.coordinator = Coordinator(
        coordinator_options(state), *std::as_const(state).disk, state.now,
        decisions);
    carry_out(state, decisions, decisions.size());
  }

  // An event of the coordinator, with every point at which it may be killed.
  template <typename Event>
  void add_event(
      const State& state,
      const std::string& name,
      Event event,
      std::vector<Choice>& choices) const {
    choices.push_back({name, [this, event](State& next) {
                         auto decisions = event(next);
                         const auto all = decisions.size();
                         carry_out(next, std::move(decisions), all);
                       }});
    if (state.left.coordinator_crashes <= 0) {
      return;
    }
    // Killed before the record, after it, or when the first replica has been told.
    for (const std::size_t count : {0U, 1U, 2U, 3U}) {
      choices.push_back(
          {str(name, ", killed after ", count, " decisions"),
           [this, event, count](State& next) {
             auto decisions = event(next);
             carry_out(next, std::move(decisions), count);
           }});
    }
  }

  // ---- a replica ----

  void carry_out(State& state, Process& self, const Tasks& tasks) const {
    for (const auto& task : tasks) {
      if (const auto* compute = std::get_if<ComputeTask>(&task)) {
        asked(state, self, *compute);
      } else if (const auto* join = std::get_if<EpochMembers>(&task)) {
        self.joining = *join;
      } else if (const auto* reduce = std::get_if<ReduceTask>(&task)) {
        self.reducing = *reduce;
        self.ring = self.protocol.view().members;
        contribute(state, self);
      } else if (std::get_if<StopReduceTask>(&task)) {
        self.reducing.reset();
      } else if (const auto* apply = std::get_if<ApplyTask>(&task)) {
        self.applying = apply->commit;
      } else if (const auto* catch_up = std::get_if<CatchUpTask>(&task)) {
        self.catching_up = *catch_up;
      } else if (std::get_if<StopCatchUpTask>(&task)) {
        self.catching_up.reset();
        self.fetched.reset();
      } else if (const auto* install = std::get_if<InstallTask>(&task)) {
        self.installing = *install;
      } else if (std::get_if<StopTask>(&task)) {
        self.alive = false;
      } else {
        send_report(state, self);
      }
    }
  }

  // A computation cannot be stopped: it ends, but its result is dropped.
  void asked(State& state, Process& self, const ComputeTask& task) const {
    if (self.computing.size() > 1) {
      self.computing.pop_back();
    }
    if (task.samples.empty()) {
      self.gradients = Contribution{task.serial, self.bits, {}};
      contribute(state, self);
    } else {
      self.computing.push_back(task);
    }
  }

  void computed(State& state, Process& self) const {
    const auto task = self.computing.front();
    self.computing.erase(self.computing.begin());
    if (task.serial != ModelAccess::serial(self.protocol)) {
      return;  // Zeros of a later task may be there already.
    }
    self.gradients = Contribution{task.serial, self.bits, task.samples};
    contribute(state, self);
  }

  // The bad gradients are never given away, and the replica is told of them.
  void computed_badly(State& state, Process& self) const;

  // Runs as soon as there is both a reduction and gradients for it.
  void contribute(State& state, Process& self) const {
    if (!self.reducing || !self.gradients) {
      return;
    }
    if (self.gradients->serial != ModelAccess::serial(self.protocol)) {
      return;
    }
    const auto& attempt = self.reducing->attempt;
    auto& parts = (*state.reductions)[attempt];
    const auto me = self.protocol.report().replica;
    const auto [part, first] = parts.emplace(me, *self.gradients);
    if (!first) {
      throw Violation{str("S4: ", me, " reduces ", text_of(attempt), " twice")};
    }
  }

  // Once the gradients of all members are there, every member that asks gets the same sum.
  static std::optional<std::uint64_t> sum_of(
      const State& state, const Process& self) {
    const auto parts = state.reductions->find(self.reducing->attempt);
    if (parts == state.reductions->end()) {
      return std::nullopt;
    }
    Sum sum;
    for (const auto& member : self.ring) {
      const auto part = parts->second.find(member.replica);
      if (part == parts->second.end()) {
        return std::nullopt;
      }
      sum.add(part->second);
    }
    return sum.value();
  }

  void reduced(State& state, Process& self) const {
    const auto reduce = *self.reducing;
    const auto sum = *sum_of(state, self);
    self.reducing.reset();
    self.sum = sum;
    carry_out(state, self, self.protocol.reduced(reduce.attempt, sum));
    if (options_.mutation == Mutation::kApplyWithoutCommit &&
        self.protocol.report().vote) {
      RunView forged = self.protocol.view();
      const auto base = *self.protocol.held();
      forged.canonical = {
          base.step + 1, next_lineage(base.lineage, reduce.attempt, {}, sum)};
      forged.recent = {{reduce.attempt, base, forged.canonical, sum}};
      carry_out(state, self, self.protocol.received(forged));
    }
  }

  std::uint64_t applied_sum(Process& self) const;

  // The links of the ring that carry nothing.
  static std::vector<BrokenLink> dead_links(
      const State& state, const std::vector<Member>& ring);
  // Why it suspects the ring: a dead link of its own, or a member that has left, with what that
  // member has said.
  static std::optional<Suspicion> suspicion_of(
      const State& state,
      const Process& self,
      const Epoch& epoch,
      const std::vector<Member>& members);

  // ---- what must hold ----

  void check_commit(const State& state, const CommitRecord& record) const {
    const auto fail = [&](const std::string& what) {
      throw Violation{
          what + " in the commit of " + text_of(record.commit.attempt)};
    };
    if (static_cast<int>(record.participants.size()) < options_.replicas_min) {
      fail("S5: too few");
    }
    if (record.commit.base != state.tip) {
      fail("S8: another branch than " + text_of(state.tip));
    }
    const auto parts = state.reductions->find(record.commit.attempt);
    std::set<std::uint64_t> bits;
    Sum sum;
    for (const auto& one : record.participants) {
      if (parts == state.reductions->end() ||
          !parts->second.contains(one.replica)) {
        fail("S4: one that has not reduced");
        return;
      }
      const auto& part = parts->second.at(one.replica);
      sum.add(part);
      if (part.samples != one.samples) {
        fail("S6: other samples than were reduced");
      }
      if (part.bad) {
        fail("S7: bad gradients");
      }
      bits.insert(part.bits);
    }
    if (bits.size() > 1) {
      fail("S3: members that reduced from different parameters");
    }
    if (sum.value() != record.commit.gradients) {
      fail("S4: another sum than of its members");
    }
  }

  static void check_recovery(const State& state, const RecoveryRecord& record);
  static void check_forgotten(const State& state, const StateId& next);
  static void check_rollback(const State& state, const RollbackRecord& record) {
    for (std::size_t r = 0; r < state.replicas.size(); ++r) {
      const auto& one = *state.replicas[r];
      if (one.alive && one.protocol.held() == record.lost &&
          state.coordinator->counts(
              static_cast<ReplicaId>(r), one.incarnation)) {
        throw Violation{
            "S8: " + text_of(record.lost) +
            " is rolled back while a replica holds it"};
      }
    }
  }

  const ModelOptions options_;

  void add_coordinator_choices(
      const State& state, std::vector<Choice>& choices) const;
  void add_reports(const State& state, std::vector<Choice>& choices) const;
  void add_replica_choices(
      const State& state,
      std::size_t r,
      bool beats,
      std::vector<Choice>& choices) const;
  void add_orders(
      const State& state, std::size_t r, std::vector<Choice>& choices) const;
  void add_what_it_does(
      const State& state, std::size_t r, std::vector<Choice>& choices) const;
  void add_what_its_ring_does(
      const State& state, std::size_t r, std::vector<Choice>& choices) const;
  void add_coordinator_faults(
      const State& state, std::vector<Choice>& choices) const;
  void add_replica_faults(
      const State& state, std::size_t r, std::vector<Choice>& choices) const;
  void add_link_cuts(const State& state, std::vector<Choice>& choices) const;
  void add_hangs(const State& state, std::vector<Choice>& choices) const;
  static void add_slow_links(const State& state, std::vector<Choice>& choices);
  void add_faults(const State& state, std::vector<Choice>& choices) const;
  void deliver(State& state, const Message& message) const;
  CoordinatorDecisions hear(
      State& state,
      const std::vector<std::shared_ptr<const Message>>& messages) const;
  // The report as the coordinator sees it under the mutation.
  Report heard(const State& state, Report report) const;
  static bool is_informed(const State& state);
};

}  // namespace sherd::ft
