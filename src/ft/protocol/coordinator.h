// SPDX-License-Identifier: Apache-2.0
//
// Coordinator decides who trains together and which steps are committed. It is a
// state machine: reports, losses and the time come in, decisions go out, each with
// its reason; whoever runs it appends records to the log, on the disk, before it
// carries out what comes after them. Nothing else of it needs to outlive it.
// Thread rule: one thread; a value, which the model checker copies.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>
#include "base/clock.h"
#include "ft/protocol/history.h"
#include "ft/protocol/messages.h"

namespace sherd::ft {

struct CoordinatorOptions {
  // Behaviour. No step is committed by fewer.
  int replicas_min = 1;
  // Of each replica, in each step.
  std::int64_t samples_per_replica = 1;
  // The first epoch of all waits for so many replicas, or so long.
  int replicas_start = 1;
  Duration start_timeout = std::chrono::seconds(60);
  // Performance. Failures that come together make one epoch.
  Duration settle = std::chrono::milliseconds(30);
  // Until members of a new epoch have joined it; who has not is left out.
  Duration join_timeout = std::chrono::seconds(1);
  // Behaviour. How long the only holders of the last step may be away.
  Duration hold_time = std::chrono::seconds(60);
};

struct AppendRecord {
  Record record;
};
struct Tell {
  ReplicaId replica = 0;
  Incarnation incarnation = 0;
  Order order;
};
struct Decision {
  std::variant<AppendRecord, Tell> what;
  std::string reason;
};
using Decisions = std::vector<Decision>;

class Coordinator {
 public:
  // A new term, which the first decision writes down.
  Coordinator(
      const CoordinatorOptions& options,
      History history,
      Instant now,
      Decisions& decisions);

  // REQUIRES: lives of one replica are heard in the order of their connections;
  // what a former connection still brings is dropped.
  Decisions heard(const Report& report, Instant now);
  // The connection ended, or nothing was heard for too long.
  Decisions lost(
      ReplicaId replica,
      Incarnation incarnation,
      const std::string& reason,
      Instant now);
  Decisions tick(Instant now);
  // When tick() may have something to decide; none: never, by itself.
  std::optional<Instant> next_tick() const;

  enum class Phase {
    kForming,  // Waits for replicas.
    kJoining,  // Members connect to each other.
    kRunning,  // They train.
  };
  Phase phase() const { return phase_; }
  const History& history() const { return history_; }
  // Whether it takes this life of the replica for one that is there.
  bool counts(ReplicaId replica, Incarnation incarnation) const;

 private:
  friend class ModelAccess;  // The model checker's.
  struct Known {
    Report report;
    bool connected = false;
    bool left_out = false;  // Of the next epoch: it did not join the last one.
    bool operator==(const Known&) const = default;
  };

  bool is_member(ReplicaId replica) const;
  // Has the canonical state, and wants to train.
  bool can_train(const Known& known) const;
  // Has it, or can make it from what it reduced.
  bool holds_canonical(const Known& known) const;
  Attempt attempt() const;
  // Why the epoch cannot go on; empty: it can.
  std::string broken() const;
  // Rules, until none has anything to decide.
  void advance(Instant now, Decisions& decisions);
  bool form(Instant now, Decisions& decisions);
  bool welcome(Instant now);
  bool roll_back(Instant now, Decisions& decisions);
  bool start(Instant now, Decisions& decisions);
  bool commit(Instant now, Decisions& decisions);
  void close_epoch(const std::string& reason, Instant now, Duration settle);
  // Whether somebody has what the last commit was made of, and will have applied
  // it soon.
  bool somebody_applies() const;
  // With samples of the next step, unless somebody has some already.
  std::vector<Member> assigned(
      std::vector<Member> members, const SampleSet& consumed) const;
  void write(Record record, const std::string& reason, Decisions& decisions);
  Order order() const;
  void tell(
      ReplicaId replica, const std::string& reason, Decisions& decisions) const;
  void tell_all(const std::string& reason, Decisions& decisions) const;

  CoordinatorOptions options_;
  History history_;
  Phase phase_ = Phase::kForming;
  std::map<ReplicaId, Known> known_;
  std::set<std::pair<ReplicaId, Incarnation>> fenced_;
  std::string why_;                    // The epoch to come.
  Instant form_at_{};                  // Not before.
  Instant join_until_{};               // While joining.
  Instant start_at_{};                 // With fewer than replicas_start.
  std::optional<Instant> lost_since_;  // No holder of the canonical state.
};

}  // namespace sherd::ft
