// SPDX-License-Identifier: Apache-2.0
//
// How replicas that have caught up come in: the coordinator plans an epoch while another one runs,
// all members join it, and a commit begins it.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ft/protocol/coordinator.h"

namespace sherd::ft {
namespace {

// How many steps a replica may lack when it comes in.
constexpr std::int64_t kJoinLag = 4;
// The least time between two changes of the members' order that avoid slow links.
constexpr Duration kReorderInterval = std::chrono::seconds(30);

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

// Whether the planned members are connected and lack few enough steps for the others to wait. Where
// steps take less time than fetching a sum, a newcomer never lacks less.
bool Coordinator::plan_is_ready() const {
  const std::int64_t lag_max = now_ < plan_until_ ? 0 : kJoinLag;
  return planned_ && plan_broken().empty() &&
      unjoined_members(planned_->members, planned_->epoch).empty() &&
      std::ranges::all_of(planned_->members, [&](const Member& member) {
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
  // The members in the order in which they are connected.
  std::vector<Member> members;
  auto next = trained.begin();
  for (const auto& member : planned_->members) {
    members.push_back(is_member(member.replica) ? *next++ : member);
  }
  return members;
}

std::vector<BrokenLink> Coordinator::broken_links_of_plan() const {
  std::vector<BrokenLink> links;
  for (const auto& member : planned_->members) {
    const auto& suspicion = replicas_.at(member.replica).report.suspicion;
    if (suspicion && suspicion->epoch == planned_->epoch) {
      links.push_back(link_of(*suspicion, member.replica));
    }
  }
  if (links.empty() && now_ >= plan_until_) {
    links = links_of_silent(
        planned_->members,
        unjoined_members(planned_->members, planned_->epoch));
  }
  return links;
}

// The newcomers that cannot come in, either because of themselves or because of their links to
// others. Empty if the next plan may have a ring that avoids the links.
std::set<ReplicaId> Coordinator::culprits_of_plan() {
  // With fewer members each is next to every other one.
  constexpr std::size_t kOtherRings = 4;
  std::set<ReplicaId> newcomers;
  std::set<ReplicaId> culprits;
  for (const auto& member : planned_->members) {
    const auto& known = replicas_.at(member.replica);
    if (!counts(member.replica, member.incarnation) || known.report.leaving) {
      return {};  // It will not be in the next plan.
    }
    if (!is_member(member.replica)) {
      newcomers.insert(member.replica);
      if (now_ >= plan_until_ && !can_join(known)) {
        culprits.insert(member.replica);
      }
    }
  }
  for (const auto& link : broken_links_of_plan()) {
    const bool is_new =
        link_history_.fail(link.accused, link.noticed_by, planned_->epoch);
    if (is_new && planned_->members.size() >= kOtherRings) {
      return {};
    }
    for (const auto end : {link.accused, link.noticed_by}) {
      if (newcomers.contains(end)) {
        culprits.insert(end);
        break;
      }
    }
  }
  // Otherwise the same plan would be made again at once.
  return culprits.empty() ? newcomers : culprits;
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
  for (const auto culprit : culprits_of_plan()) {
    postpone(
        culprit, rejoin_wait(culprit), "it cannot be connected: " + reason);
  }
  planned_.reset();
  tell_all(reason);
  return true;
}

// The replica that has waited longest among those that could not be connected.
std::optional<ReplicaId> Coordinator::next_suspect() const {
  std::optional<ReplicaId> next;
  for (const auto& [replica, known] : replicas_) {
    if (!is_member(replica) && known.failed_joins > 0 && can_join(known) &&
        (!next || known.out_until < replicas_.at(*next).out_until)) {
      next = replica;
    }
  }
  return next;
}

void Coordinator::begin_plan(
    std::vector<Member> members, const std::string& reason) {
  planned_ = EpochMembers{next_epoch(), std::move(members)};
  plan_until_ = now_ + options_.join_timeout;
  tell_all(reason);
}

// Plans an epoch of the same members without slow links between them. They connect during the
// current epoch and a commit begins the new one, so no step waits for it.
bool Coordinator::plan_other_order() {
  if (!link_history_.any_slow() || now_ < reorder_at_) {
    return false;
  }
  reorder_at_ = now_ + kReorderInterval;
  std::vector<Member> members;
  for (const auto replica : member_ids_) {
    members.push_back({replica, replicas_.at(replica).report.incarnation, {}});
  }
  members = in_order(std::move(members));
  const auto quality = link_quality();
  if (cost_of_order(members, quality) >=
      cost_of_order(history_.members, quality)) {
    return false;
  }
  begin_plan(
      std::move(members), "another order of members has fewer slow links");
  return true;
}

bool Coordinator::plan() {
  // The epoch ends with the current step, together with any plan.
  if (std::ranges::any_of(history_.members, [&](const Member& one) {
        return replicas_.at(one.replica).report.leaving;
      })) {
    return false;
  }
  if (planned_) {
    return drop_plan();
  }
  // Rings have room for two epochs: a member that has not begun this one would give it up.
  if (std::ranges::any_of(history_.members, [&](const Member& one) {
        return replicas_.at(one.replica).report.held != history_.canonical;
      })) {
    return false;
  }
  if (replicas_.size() == history_.members.size()) {
    return plan_other_order();  // There is no newcomer.
  }
  const auto is_welcome = [&](const auto& one) {
    return !is_member(one.first) && one.second.failed_joins == 0 &&
        can_join(one.second);
  };
  // Replicas that could not be connected come in one at a time, so that they do not keep others
  // out.
  const bool some = std::ranges::any_of(replicas_, is_welcome);
  const auto suspect = some ? std::nullopt : next_suspect();
  std::vector<Member> members;
  std::string newcomer;
  for (const auto& one : replicas_) {
    const auto replica = one.first;
    const bool comes = is_welcome(one) || replica == suspect;
    if (comes || is_member(replica)) {
      members.push_back({replica, one.second.report.incarnation, {}});
      newcomer = comes ? name_of(replica) : newcomer;
    }
  }
  if (newcomer.empty()) {
    return plan_other_order();
  }
  begin_plan(in_order(std::move(members)), str(newcomer, " has caught up"));
  return true;
}

}  // namespace sherd::ft
