// SPDX-License-Identifier: Apache-2.0
//
// How replicas that have caught up come in: the coordinator plans an epoch while another one runs;
// all join it, and a commit begins it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ft/protocol/coordinator.h"

namespace sherd::ft {
namespace {

// Steps that a replica may lack when it comes in.
constexpr std::int64_t kJoinLag = 4;

}  // namespace

// Whether the replica can be a member of the planned epoch.
bool Coordinator::can_join(const ReplicaEntry& known) const {
  return !is_out(known) && !known.report.leaving && lag(known) &&
      *lag(known) <= kJoinLag;
}

std::string Coordinator::plan_broken() const {
  for (const auto& member : planned_->members) {
    if (!counts(member.replica, member.incarnation)) {
      return str(name_of(member.replica), " was lost before it could join");
    }
    const auto& report = replicas_.at(member.replica).report;
    if (report.leaving) {
      return str(name_of(member.replica), " leaves");
    }
    if (report.suspicion && report.suspicion->epoch == planned_->epoch) {
      return str(
          name_of(member.replica), " cannot reach ",
          name_of(report.suspicion->accused), ": ", report.suspicion->reason);
    }
  }
  return {};
}

// Its members are connected and lack little, which the others will wait for. Where steps are faster
// than sums can be fetched, a newcomer never lacks less.
bool Coordinator::plan_is_ready() const {
  const std::int64_t lag_max = now_ < plan_until_ ? 0 : kJoinLag;
  return planned_ && plan_broken().empty() &&
      unjoined_members(planned_->members, planned_->epoch).empty() &&
      std::all_of(
             planned_->members.begin(), planned_->members.end(),
             [&](const Member& member) {
               const auto lags = lag(replicas_.at(member.replica));
               return is_member(member.replica) || (lags && *lags <= lag_max);
             });
}

// A newcomer lacks the step that is being committed, so it follows in the next one.
std::vector<Member> Coordinator::members_of_plan(const SampleSet& consumed) {
  std::vector<Member> trained;
  for (const auto& member : planned_->members) {
    if (is_member(member.replica)) {
      trained.push_back(member);
    } else {
      replicas_.at(member.replica).member_since = now_;
    }
  }
  assign_samples(trained, consumed);
  // In the order in which they are connected.
  std::vector<Member> members;
  auto next = trained.begin();
  for (const auto& member : planned_->members) {
    members.push_back(is_member(member.replica) ? *next++ : member);
  }
  return members;
}

bool Coordinator::drop_plan() {
  auto reason = plan_broken();
  const bool late = now_ >= plan_until_;
  const auto missing = unjoined_members(planned_->members, planned_->epoch);
  if (reason.empty() && late && !missing.empty()) {
    reason = str(text_of(planned_->epoch), " was not joined by all");
  }
  for (const auto& member : planned_->members) {
    const auto& known = replicas_.at(member.replica);
    if (reason.empty() && late && !is_member(member.replica) &&
        !can_join(known)) {
      reason = str(name_of(member.replica), " cannot keep up");
    }
  }
  if (reason.empty()) {
    return false;
  }
  const bool link_is_to_blame =
      late && suspect_link(planned_->members, missing, planned_->epoch);
  for (const auto& member : planned_->members) {
    if (!is_member(member.replica) && !link_is_to_blame) {
      penalise(member.replica);
      auto& until = replicas_.at(member.replica).out_until;
      until = std::max(until, now_ + options_.backoff);
    }
  }
  planned_.reset();
  tell_all(reason);
  return true;
}

bool Coordinator::plan() {
  // With the step that is under way the epoch ends, and whatever was planned.
  if (std::any_of(
          history_.members.begin(), history_.members.end(),
          [&](const Member& one) {
            return replicas_.at(one.replica).report.leaving;
          })) {
    return false;
  }
  if (planned_) {
    return drop_plan();
  }
  // Rings have room for two epochs: who has not begun this one would give it up.
  if (std::any_of(
          history_.members.begin(), history_.members.end(),
          [&](const Member& one) {
            return replicas_.at(one.replica).report.held != history_.canonical;
          })) {
    return false;
  }
  if (replicas_.size() == history_.members.size()) {
    return false;  // There is nobody else.
  }
  const auto members = member_ids();
  PlannedEpoch next;
  std::string newcomer;
  for (const auto& [replica, known] : replicas_) {
    if (members.contains(replica)) {
      next.members.push_back({replica, known.report.incarnation, {}});
    } else if (can_join(known)) {
      next.members.push_back({replica, known.report.incarnation, {}});
      newcomer = name_of(replica);
    }
  }
  if (newcomer.empty()) {
    return false;
  }
  next.epoch = next_epoch();
  next.members = link_faults_.ring_of(std::move(next.members));
  planned_ = std::move(next);
  plan_until_ = now_ + options_.join_timeout;
  tell_all(str(newcomer, " has caught up"));
  return true;
}

}  // namespace sherd::ft
