// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sherd::ft {
namespace {

std::string name_of(ReplicaId replica) { return str("replica ", replica); }

}  // namespace

Coordinator::Coordinator(
    const CoordinatorOptions& options,
    History history,
    Instant now,
    Decisions& decisions)
    : options_(options),
      history_(std::move(history)),
      why_("the coordinator has started"),
      form_at_(now + options.settle),
      start_at_(now + options.start_timeout) {
  write(TermRecord{history_.term + 1}, why_, decisions);
}

bool Coordinator::is_member(ReplicaId replica) const {
  return std::any_of(
      history_.members.begin(), history_.members.end(),
      [&](const Member& one) { return one.replica == replica; });
}

bool Coordinator::can_train(const Known& known) const {
  return known.connected && !known.left_out && !known.report.leaving &&
      known.report.held && known.report.held == history_.canonical;
}

bool Coordinator::holds_canonical(const Known& known) const {
  const auto& vote = known.report.vote;
  return known.connected &&
      (known.report.held == history_.canonical ||
       (vote && history_.commit && vote->attempt == history_.commit->attempt));
}

Attempt Coordinator::attempt() const {
  return {history_.epoch, history_.canonical->step + 1};
}

// ---- what comes in ----

Decisions Coordinator::heard(const Report& report, Instant now) {
  Decisions decisions;
  const auto replica = report.replica;
  if (fenced_.contains({replica, report.incarnation})) {
    Order fence = order();
    fence.fenced =
        str("incarnation ", report.incarnation, " of ", name_of(replica),
            " was replaced by a newer one");
    decisions.push_back(
        {Tell{replica, report.incarnation, fence}, fence.fenced});
    return decisions;
  }
  const auto before = known_.find(replica);
  if (before != known_.end() &&
      before->second.report.incarnation != report.incarnation) {
    fenced_.insert({replica, before->second.report.incarnation});
  }
  known_[replica] = {.report = report, .connected = true};
  if (!history_.canonical && report.held && report.held->step == 0) {
    history_.canonical = report.held;
    history_.past.push_back({*report.held, std::nullopt, {}});
  }
  advance(now, decisions);
  tell(replica, "it has reported", decisions);
  return decisions;
}

Decisions Coordinator::lost(
    ReplicaId replica,
    Incarnation incarnation,
    const std::string& reason,
    Instant now) {
  Decisions decisions;
  const auto found = known_.find(replica);
  if (found == known_.end() ||
      found->second.report.incarnation != incarnation) {
    return decisions;
  }
  found->second.connected = false;
  why_ = str(name_of(replica), " was lost: ", reason);
  advance(now, decisions);
  return decisions;
}

bool Coordinator::counts(ReplicaId replica, Incarnation incarnation) const {
  const auto found = known_.find(replica);
  return found != known_.end() && found->second.connected &&
      found->second.report.incarnation == incarnation;
}

Decisions Coordinator::tick(Instant now) {
  Decisions decisions;
  advance(now, decisions);
  return decisions;
}

std::optional<Instant> Coordinator::next_tick() const {
  if (phase_ == Phase::kRunning) {
    return std::nullopt;
  }
  if (phase_ == Phase::kJoining) {
    return join_until_;
  }
  std::optional<Instant> next;
  const auto consider = [&](Instant at) {
    next = next ? std::min(*next, at) : at;
  };
  consider(somebody_applies() ? form_at_ + options_.join_timeout : form_at_);
  if (history_.epoch == Epoch()) {
    consider(start_at_);
  }
  if (lost_since_) {
    consider(*lost_since_ + options_.hold_time);
  }
  return next;
}

// ---- rules ----

std::string Coordinator::broken() const {
  for (const auto& member : history_.members) {
    const auto& known = known_.at(member.replica);
    if (known.report.incarnation != member.incarnation) {
      return str(name_of(member.replica), " has started anew");
    }
    if (!known.connected) {
      return str(name_of(member.replica), " was lost");
    }
    const auto& suspicion = known.report.suspicion;
    if (suspicion && suspicion->epoch == history_.epoch) {
      return str(
          name_of(member.replica), " suspects ", name_of(suspicion->accused),
          ": ", suspicion->reason);
    }
    const auto& held = known.report.held;
    if (!held || (held != history_.canonical && held->step >= attempt().step)) {
      return str(name_of(member.replica), " has another state");
    }
  }
  return {};
}

void Coordinator::advance(Instant now, Decisions& decisions) {
  bool decided = true;
  while (decided) {
    decided = false;
    if (phase_ != Phase::kForming) {
      if (const auto reason = broken(); !reason.empty()) {
        close_epoch(reason, now, options_.settle);
      }
    }
    switch (phase_) {
      case Phase::kForming:
        decided = form(now, decisions) || roll_back(now, decisions);
        break;
      case Phase::kJoining:
        decided = start(now, decisions);
        break;
      case Phase::kRunning:
        decided = commit(now, decisions) || welcome(now);
        break;
    }
  }
}

void Coordinator::close_epoch(
    const std::string& reason, Instant now, Duration settle) {
  phase_ = Phase::kForming;
  why_ = reason;
  form_at_ = now + settle;
}

bool Coordinator::form(Instant now, Decisions& decisions) {
  if (!history_.canonical || now < form_at_) {
    return false;
  }
  std::vector<Member> next;
  for (const auto& [replica, known] : known_) {
    if (can_train(known)) {
      next.push_back({replica, known.report.incarnation, {}});
    }
  }
  const auto count = static_cast<int>(next.size());
  const bool first = history_.epoch == Epoch();
  if (count < std::max(1, options_.replicas_min) ||
      (first && count < options_.replicas_start && now < start_at_)) {
    return false;
  }
  if (somebody_applies() && now < form_at_ + options_.join_timeout) {
    return false;
  }
  // Who goes on with a step keeps the samples that it has gradients of.
  for (auto& member : next) {
    for (const auto& before : history_.members) {
      if (before.replica == member.replica &&
          before.incarnation == member.incarnation) {
        member.samples = before.samples;
      }
    }
  }
  const Epoch epoch{history_.term, history_.epoch.number + 1};
  write(
      EpochRecord{
          epoch, *history_.canonical,
          assigned(std::move(next), history_.consumed)},
      str(count, " replicas; ", why_), decisions);
  phase_ = Phase::kJoining;
  join_until_ = now + options_.join_timeout;
  lost_since_.reset();
  for (auto& [replica, known] : known_) {
    known.left_out = false;
  }
  tell_all(str(text_of(epoch), " begins: ", why_), decisions);
  return true;
}

bool Coordinator::start(Instant now, Decisions& decisions) {
  std::vector<ReplicaId> late;
  for (const auto& member : history_.members) {
    if (known_.at(member.replica).report.joined != history_.epoch) {
      late.push_back(member.replica);
    }
  }
  if (late.empty()) {
    phase_ = Phase::kRunning;
    tell_all("all have joined", decisions);
    return true;
  }
  if (now < join_until_) {
    return false;
  }
  for (const auto replica : late) {
    known_.at(replica).left_out = true;
  }
  close_epoch(
      str(name_of(late.front()), " has not joined ", text_of(history_.epoch)),
      now, Duration(0));
  return true;
}

bool Coordinator::commit(Instant now, Decisions& decisions) {
  std::vector<Participant> participants;
  std::optional<std::uint64_t> gradients;
  for (const auto& member : history_.members) {
    const auto& vote = known_.at(member.replica).report.vote;
    if (!vote || vote->attempt != attempt() ||
        vote->base != history_.canonical) {
      return false;
    }
    if (gradients && *gradients != vote->gradients) {
      close_epoch(
          str(name_of(member.replica), " has another sum of gradients than ",
              name_of(history_.members.front().replica)),
          now, Duration(0));
      return true;
    }
    gradients = vote->gradients;
    participants.push_back(
        {member.replica, member.incarnation, member.samples});
  }
  Commit commit{attempt(), *history_.canonical, {}};
  commit.result = {
      commit.attempt.step,
      next_lineage(
          commit.base.lineage, commit.attempt, participants, *gradients)};
  auto next = history_.members;
  SampleSet consumed = history_.consumed;
  std::string leaves;
  for (auto& member : next) {
    consumed.add(member.samples);
    member.samples.clear();
    if (known_.at(member.replica).report.leaving) {
      leaves = str(name_of(member.replica), " leaves");
    }
  }
  write(
      CommitRecord{
          commit, participants, *gradients,
          leaves.empty() ? assigned(std::move(next), consumed)
                         : std::vector<Member>()},
      str("all ", participants.size(), " members have reduced the same sum"),
      decisions);
  if (!leaves.empty()) {
    close_epoch(leaves, now, Duration(0));
  }
  tell_all(str(text_of(commit.attempt), " is committed"), decisions);
  return true;
}

// It follows in this step, without samples, and counts from the next on.
bool Coordinator::welcome(Instant now) {
  for (const auto& [replica, known] : known_) {
    if (can_train(known) && !is_member(replica)) {
      close_epoch(str(name_of(replica), " has caught up"), now, Duration(0));
      return true;
    }
  }
  return false;
}

bool Coordinator::roll_back(Instant now, Decisions& decisions) {
  if (!history_.canonical ||
      std::any_of(known_.begin(), known_.end(), [&](const auto& one) {
        return holds_canonical(one.second);
      })) {
    lost_since_.reset();
    return false;
  }
  // Of what anybody holds, the last.
  const History::Past* best = nullptr;
  for (const auto& past : history_.past) {
    for (const auto& [replica, known] : known_) {
      if (known.connected && known.report.held == past.state) {
        best = &past;
      }
    }
  }
  if (best == nullptr) {
    lost_since_.reset();
    return false;
  }
  lost_since_ = lost_since_.value_or(now);
  if (now < *lost_since_ + options_.hold_time) {
    return false;
  }
  const StateId to = best->state;
  const auto reason =
      str("nobody has held ", text_of(*history_.canonical), " for ",
          seconds(options_.hold_time), " s");
  write(RollbackRecord{*history_.canonical, to}, reason, decisions);
  lost_since_.reset();
  form_at_ = now;
  return true;
}

bool Coordinator::somebody_applies() const {
  return std::any_of(known_.begin(), known_.end(), [&](const auto& one) {
    const auto& known = one.second;
    return holds_canonical(known) && known.report.held != history_.canonical;
  });
}

std::vector<Member> Coordinator::assigned(
    std::vector<Member> members, const SampleSet& consumed) const {
  // Who comes into a step that others have begun follows without any.
  if (std::any_of(members.begin(), members.end(), [](const Member& one) {
        return !one.samples.empty();
      })) {
    return members;
  }
  SampleSet taken = consumed;
  for (auto& member : members) {
    member.samples = taken.lowest_free(options_.samples_per_replica);
    taken.add(member.samples);
  }
  return members;
}

// ---- what goes out ----

void Coordinator::write(
    Record record, const std::string& reason, Decisions& decisions) {
  append(history_, record);
  decisions.push_back({AppendRecord{std::move(record)}, reason});
}

Order Coordinator::order() const {
  Order order;
  order.term = history_.term;
  order.canonical = history_.canonical.value_or(StateId());
  order.commit = history_.commit;
  order.epoch = history_.epoch;
  if (phase_ != Phase::kForming) {
    order.members = history_.members;
    order.stage = phase_ == Phase::kRunning ? Stage::kRunning : Stage::kJoining;
  }
  return order;
}

void Coordinator::tell(
    ReplicaId replica, const std::string& reason, Decisions& decisions) const {
  const auto& known = known_.at(replica);
  if (known.connected && history_.canonical) {
    decisions.push_back(
        {Tell{replica, known.report.incarnation, order()}, reason});
  }
}

void Coordinator::tell_all(
    const std::string& reason, Decisions& decisions) const {
  for (const auto& [replica, known] : known_) {
    tell(replica, reason, decisions);
  }
}

}  // namespace sherd::ft
