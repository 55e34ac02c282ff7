// SPDX-License-Identifier: Apache-2.0
//
// Plays the replicas of a coordinator in tests of its decisions. Time is simulated. Thread rule:
// one thread.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "ft/protocol/coordinator.h"

namespace sherd::ft {

inline const StateId kFirst{0, first_lineage(1, 2)};
inline constexpr Duration kSettle = std::chrono::milliseconds(30);
inline constexpr Duration kJoin = std::chrono::seconds(1);
inline constexpr Duration kVote = std::chrono::seconds(2);
inline constexpr Duration kHold = std::chrono::seconds(60);

inline CoordinatorOptions options_of(int replicas_min, int replicas_start) {
  CoordinatorOptions options;
  options.replicas_min = replicas_min;
  options.replicas_start = replicas_start;
  options.samples_per_replica = 8;
  return options;
}

// Plays the replicas of a coordinator, as reports.
class CoordinatorScript {
 public:
  explicit CoordinatorScript(
      const CoordinatorOptions& options, History history = {})
      : coordinator_(options, std::move(history), now_, decisions_) {
    take(std::move(decisions_));
  }

  Report& report(ReplicaId replica) {
    auto& one = reports_[replica];
    if (one.incarnation == 0) {
      one = {
          .replica = replica,
          .incarnation = replica + 100,
          .config = 9,
          .held = kFirst,
          .joined = {},
          .vote = {},
          .suspicion = {},
          .addresses = {},
          .progress = {}};
    }
    return one;
  }
  void say(ReplicaId replica) {
    take(coordinator_.received(report(replica), now_));
  }
  // All these reports are taken before any rule is applied.
  void say_together(std::initializer_list<ReplicaId> replicas) {
    std::vector<Report> reports;
    for (const auto replica : replicas) {
      reports.push_back(report(replica));
    }
    take(coordinator_.received(reports, now_));
  }
  void lose(ReplicaId replica) {
    take(coordinator_.lost(
        replica, report(replica).incarnation, "killed by the test", now_));
  }
  void hang(ReplicaId replica) {
    take(coordinator_.hangs(
        replica, report(replica).incarnation, "it does nothing", now_));
  }
  void link_fails(ReplicaId from, ReplicaId to) {
    take(coordinator_.links_fail(
        {{.accused = to, .noticed_by = from}}, "a link is dead", now_));
  }
  // `from` cannot connect to `to` in the epoch that it heard of last.
  void cannot_reach(ReplicaId from, ReplicaId to) {
    accuse(view(from).epoch, from, to);
  }
  void cannot_reach_as_planned(ReplicaId from, ReplicaId to) {
    accuse(view(from).planned->epoch, from, to);
  }
  void wait(Duration time) {
    pass(time);
    take(coordinator_.tick(now_));
  }
  // Time passes without a tick, as if the machine were busy with something else.
  void pass(Duration time) { now_ += time; }
  // The replicas join the epoch that they heard of last.
  void join(std::initializer_list<ReplicaId> replicas) {
    for (const auto replica : replicas) {
      report(replica).joined = view(replica).epoch;
      report(replica).vote.reset();
      say(replica);
    }
  }
  // The replicas join the planned epoch.
  void join_plan(std::initializer_list<ReplicaId> replicas) {
    for (const auto replica : replicas) {
      report(replica).joined = view(replica).planned->epoch;
      say(replica);
    }
  }
  void vote(ReplicaId replica, std::uint64_t gradients = 5) {
    reduce(replica, gradients);
    say(replica);
  }
  // The replica has a vote but does not report it yet.
  void reduce(ReplicaId replica, std::uint64_t gradients = 5) {
    const auto& view = *orders_.at(replica);
    report(replica).vote =
        Vote{{view.epoch, view.canonical.step + 1}, view.canonical, gradients};
  }
  // The replicas have applied the canonical state.
  void apply(std::initializer_list<ReplicaId> replicas) {
    for (const auto replica : replicas) {
      report(replica).held = view(replica).canonical;
      report(replica).vote.reset();
      say(replica);
    }
  }
  void begin(std::initializer_list<ReplicaId> replicas) {
    for (const auto replica : replicas) {
      say(replica);
    }
    wait(kSettle);
    join(replicas);
  }

  Instant now() const { return now_; }
  // How many views were sent so far.
  int views() const { return views_; }
  const RunView& view(ReplicaId replica) const { return *orders_.at(replica); }
  const std::vector<Record>& log() const { return log_; }
  const std::vector<std::string>& reasons() const { return reasons_; }
  const std::vector<std::string>& notices() const { return notices_; }
  const Coordinator& coordinator() const { return coordinator_; }
  std::vector<ReplicaId> members(ReplicaId seen_by) const {
    std::vector<ReplicaId> members;
    for (const auto& member : view(seen_by).members) {
      members.push_back(member.replica);
    }
    return members;
  }

 private:
  void accuse(const Epoch& epoch, ReplicaId from, ReplicaId to) {
    report(from).suspicion = Suspicion{epoch, to, "not connected", from};
    say(from);
  }
  void take(CoordinatorDecisions decisions) {
    for (auto& decision : decisions) {
      if (const auto* tell = std::get_if<SendView>(&decision.what)) {
        ++views_;
        orders_[tell->replica] = tell->view;
      } else if (
          const auto* found = std::get_if<DetectedFault>(&decision.what)) {
        notices_.push_back(
            found->counter + " " + found->culprit + ": " + decision.reason);
      } else {
        log_.push_back(std::get<Record>(decision.what));
        reasons_.push_back(decision.reason);
      }
    }
  }

  Instant now_{};
  CoordinatorDecisions decisions_;
  std::map<ReplicaId, Report> reports_;
  std::map<ReplicaId, std::shared_ptr<const RunView>> orders_;
  int views_ = 0;
  std::vector<Record> log_;
  std::vector<std::string> reasons_;
  std::vector<std::string> notices_;
  Coordinator coordinator_;
};

}  // namespace sherd::ft
