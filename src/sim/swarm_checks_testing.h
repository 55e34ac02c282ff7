// SPDX-License-Identifier: Apache-2.0
//
// What must hold after each event of a simulated world, whatever fails in it: the invariants S1 to
// S6 and S8 of docs/design/fault_tolerance.md, which the model checker compares with each state.
// They are observed from outside: from the records that reach the disk, and from what replicas
// hold. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>
#include "base/hash.h"
#include "sim/world.h"

namespace sherd::sim {

class SwarmChecks {
 public:
  // `informed_after` is the time after a change by which each connected replica has reported it.
  SwarmChecks(const SimulatedWorldOptions& options, Duration informed_after);

  // Each throws Error whose text begins with the violated invariant. Called when a record is
  // decided, when it is on disk, and after each event.
  void decided(const SimulatedWorld& world, const ft::Record& record);
  void written(const SimulatedWorld& world, const ft::Record& record);
  void after_event(const SimulatedWorld& world);

  // How many samples below the highest trained one belong to no step.
  std::int64_t samples_left_out() const;
  // The coordinator's log is empty from now on.
  void log_lost();
  bool log_is_lost() const { return log_is_lost_; }
  std::int64_t log_losses() const { return log_losses_; }
  // How often a lost log was recovered from replicas.
  std::int64_t recoveries() const { return recoveries_; }
  std::int64_t commits() const { return commits_; }
  std::int64_t rollbacks() const { return rollbacks_; }
  // A digest of everything decided and held, with its times: equal for equal runs.
  std::uint64_t digest() const { return digest_.value(); }

 private:
  struct Step {
    ft::StateId state;
    ft::StateId base;
    std::vector<ft::SampleRange> samples;
  };
  struct Seen {
    ft::Incarnation incarnation = 0;
    std::optional<ft::StateId> held;
    Instant held_since{};
    std::uint64_t term = 0;
    ft::Epoch epoch;
  };
  struct Written;

  void begin_at(const ft::EpochRecord& first);
  void recover(const SimulatedWorld& world, const ft::RecoveryRecord& record);
  void go_back_to(const ft::StateId& state);
  void commit(const ft::CommitRecord& record);
  void roll_back(const ft::RollbackRecord& record);
  void begin_epoch(const ft::Epoch& epoch);
  void take(const std::vector<ft::SampleRange>& samples);
  void give_back(const std::vector<ft::SampleRange>& samples);
  void check_rollback(
      const SimulatedWorld& world, const ft::RollbackRecord& record) const;
  void check_replica(
      const SimulatedWorld& world, ft::ReplicaId id, const ft::Replica& one);
  std::size_t replicas_min() const;
  bool on_chain(const ft::StateId& state) const;

  const SimulatedWorldOptions options_;
  const Duration informed_after_;
  std::uint64_t term_ = 0;
  ft::Epoch epoch_;
  ft::Attempt last_attempt_;
  std::vector<Step> chain_;
  std::map<ft::StateId, Step> rolled_back_;
  std::set<ft::StateId> committed_;
  // Indexed by replica, according to the log.
  // Indexed by sample.
  std::vector<ft::Incarnation> current_;
  std::vector<bool> taken_;
  std::vector<Seen> seen_;  // Indexed by replica.
  Instant coordinator_since_{};
  bool coordinator_runs_ = false;
  std::int64_t commits_ = 0;
  std::int64_t rollbacks_ = 0;
  bool log_is_lost_ = false;  // And nothing was recovered from it yet.
  std::int64_t log_losses_ = 0;
  std::optional<ft::StateId> made_again_;  // Made again by the next record.
  std::int64_t recoveries_ = 0;
  Hash64 digest_;
};

}  // namespace sherd::sim
