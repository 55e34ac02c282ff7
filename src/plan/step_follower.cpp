// SPDX-License-Identifier: Apache-2.0
#include "plan/step_follower.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace sherd::plan {
namespace {

constexpr std::size_t kPlansMax = 4;
// Limits the record of a loop that never publishes.
constexpr std::size_t kVisitsMax = 100'000;
// How many steps in a row must leave out the same visits before they get a plan of their own. If
// steps leave out varying visits, fewer repetitions could be chance, and the next step would not
// fit that plan.
constexpr int kShorterSteps = 4;
constexpr std::size_t kPastMax = 32;

// What came after the longest part of the past that is equal to its end, so that steps that take
// turns, such as those of a GAN, are foreseen. Empty if the last one is there for the first time.
std::optional<std::uint64_t> likely_next(
    const std::vector<std::uint64_t>& past) {
  std::optional<std::uint64_t> next;
  std::ptrdiff_t longest = 0;
  for (std::size_t i = 1; i < past.size(); ++i) {
    const auto before =
        std::reverse_iterator(past.begin() + static_cast<std::ptrdiff_t>(i));
    const auto length =
        std::mismatch(before, past.rend(), past.rbegin()).first - before;
    if (length > 0 && length >= longest) {
      longest = length;
      next = past[i];
    }
  }
  return next;
}

}  // namespace

StepFollower::StepFollower(StepPlanOptions options)
    : options_(std::move(options)) {}

bool StepFollower::begins_step(
    const std::vector<UnitId>& units,
    bool training,
    std::int64_t budget_bytes) {
  if (in_step_ && !record_.training) {
    const bool round_again = record_.visits.size() > 1 && units == first_;
    if (training || round_again) {
      end_step(budget_bytes);
    }
  } else if (in_step_ && record_.backward_ends.empty()) {
    note_possible_end(units, training);
  }
  if (!in_step_) {
    first_ = units;
  }
  return !in_step_;
}

// The first visit of a training step comes again without gradients at the beginning of an evaluation,
// if the step was aborted, but also within the step, as where a custom autograd Function reads the
// weight of a tied head. Only the visit after it tells.
void StepFollower::note_possible_end(
    const std::vector<UnitId>& units, bool training) {
  if (training || units != first_) {
    if (may_be_aborted_ && !training) {
      drop_step();
    }
    may_be_aborted_ = false;
    planned_again_ = false;
    return;
  }
  planned_again_ = planned_again_ ||
      (plan_ != nullptr && find_ahead({units, false}).has_value());
  may_be_aborted_ = !planned_again_;
}

std::uint64_t StepFollower::fingerprint() const {
  Hash64 hash;
  for (const auto& plan : plans_) {
    hash.add(plan.fingerprint);
  }
  for (const auto& past : past_) {
    hash.add(past.size());
    for (const auto plan : past) {
      hash.add(plan);
    }
  }
  return hash.value();
}

std::uint64_t StepFollower::shorter_step(bool training) const {
  const auto& shorter = shorter_[training ? 1 : 0];
  return shorter.times < kShorterSteps ? 0 : digest(shorter.record);
}

void StepFollower::prefer_shorter_step(
    bool training, std::int64_t budget_bytes) {
  SHERD_ASSERT(!in_step_);
  auto& shorter = shorter_[training ? 1 : 0];
  shorter.times = 0;
  prefer_plan(shorter.record, budget_bytes);
  past_[training ? 1 : 0].clear();
}

void StepFollower::forget_plans() {
  plans_.clear();
  past_ = {};
  for (auto& shorter : shorter_) {
    shorter.times = 0;
  }
}

void StepFollower::begin_step(bool training, bool follow) {
  SHERD_ASSERT(!in_step_);
  record_ = {.training = training, .visits = {}, .backward_ends = {}};
  in_step_ = true;
  ranks_agree_ = follow;
  departed_ = false;
  planned_throughout_ = false;
  may_be_aborted_ = false;
  planned_again_ = false;
  plan_ = nullptr;
  next_ = 0;
}

// Prefers a plan that begins with this visit to one that has it later, and of either kind the one that
// is due, or else the latest.
void StepFollower::choose_plan() {
  const auto& first = record_.visits.front();
  const auto due = likely_next(past_[record_.training ? 1 : 0]);
  const auto find = [&](bool from_beginning, bool only_due) {
    return std::ranges::find_if(plans_, [&](const StepPlan& plan) {
      plan_ = &plan;
      return plan.record.training == record_.training &&
          (!only_due || plan.fingerprint == due) &&
          (from_beginning ? plan.record.visits.front() == first
                          : find_ahead(first).has_value());
    });
  };
  auto found = plans_.end();
  for (const bool from_beginning : {true, false}) {
    for (const bool only_due : {true, false}) {
      found = found == plans_.end() ? find(from_beginning, only_due) : found;
    }
  }
  plan_ = found == plans_.end() ? nullptr : &*found;
  planned_throughout_ = plan_ != nullptr;
}

StepFollower::DueActions StepFollower::visit(
    const std::vector<UnitId>& units, bool in_backward) {
  SHERD_ASSERT(in_step_ && !units.empty());
  const StepTrace::Visit visit{units, in_backward};
  auto& visits = record_.visits;
  if (!visits.empty() && visits.back().in_backward == in_backward &&
      std::includes(
          visits.back().units.begin(), visits.back().units.end(), units.begin(),
          units.end())) {
    return {};
  }
  if (visits.size() < kVisitsMax) {
    visits.push_back(visit);
  }
  DueActions due;
  if (visits.size() == 1 && ranks_agree_) {
    choose_plan();
    if (plan_ != nullptr) {
      due.whole = plan_->schedule.initial;
    }
  }
  if (plan_ == nullptr) {
    return due;
  }
  if (const auto position = find_ahead(visit)) {
    due.actions = advance(*position + 1);
    return due;
  }
  depart();
  plan_ = plan_with_same_beginning();
  if (plan_ != nullptr) {
    next_ = visits.size() - 1;
    due.whole = whole_before(*plan_, next_);
    due.actions = advance(next_ + 1);
  }
  return due;
}

// Looks no farther than the next end of a backward, which all ranks pass together.
std::optional<std::size_t> StepFollower::find_ahead(
    const StepTrace::Visit& visit) const {
  for (std::size_t v = next_; v < segment_end(); ++v) {
    if (plan_->record.visits[v] == visit) {
      return v;
    }
  }
  return std::nullopt;
}

std::size_t StepFollower::segment_end() const {
  const auto& ends = plan_->record.backward_ends;
  const auto ended = record_.backward_ends.size();
  return ended < ends.size() ? ends[ended] : plan_->record.visits.size();
}

// The beginning includes the latest visit and no further end of a backward.
const StepPlan* StepFollower::plan_with_same_beginning() const {
  const auto& seen = record_.visits;
  const auto& ended = record_.backward_ends;
  const auto found =
      std::find_if(plans_.begin(), plans_.end(), [&](const StepPlan& plan) {
        const auto& all = plan.record.visits;
        const auto& ends = plan.record.backward_ends;
        return plan.record.training == record_.training &&
            all.size() >= seen.size() && ends.size() >= ended.size() &&
            (ends.size() == ended.size() ||
             ends[ended.size()] >= seen.size()) &&
            std::equal(seen.begin(), seen.end(), all.begin()) &&
            std::equal(ended.begin(), ended.end(), ends.begin());
      });
  return found == plans_.end() ? nullptr : &*found;
}

void StepFollower::leave() {
  plan_ = nullptr;
  planned_throughout_ = false;
}

void StepFollower::drop_step() {
  leave();
  in_step_ = false;
  departed_ = false;
}

void StepFollower::depart() {
  ++counters_.deviations;
  departed_ = true;
  leave();
}

void StepFollower::thaw(UnitId unit) {
  SHERD_ASSERT(!following());
  options_.frozen[static_cast<std::size_t>(unit)] = false;
  forget_plans();
}

std::vector<StepFollower::PlannedActions> StepFollower::advance(
    std::size_t next) {
  std::vector<PlannedActions> actions;
  for (; next_ < next; ++next_) {
    actions.push_back(
        {&plan_->schedule.before[next_],
         plan_->record.visits[next_].in_backward});
  }
  return actions;
}

StepFollower::DueActions StepFollower::end_backward() {
  DueActions due;
  if (!in_step_) {
    return due;  // The loss of this rank does not depend on the model.
  }
  if (plan_ != nullptr) {
    const auto& ends = plan_->record.backward_ends;
    const auto ended = record_.backward_ends.size();
    if (ended < ends.size()) {
      due.actions = advance(std::max(next_, ends[ended]));
    } else {
      depart();
    }
  }
  record_.backward_ends.push_back(record_.visits.size());
  return due;
}

void StepFollower::replan(std::int64_t budget_bytes) {
  SHERD_ASSERT(!in_step_);
  plans_.remove_if([&](StepPlan& plan) {
    auto again = make_step_plan(plan.record, options_, budget_bytes);
    if (again) {
      plan = *std::move(again);
    }
    return !again.has_value();
  });
}

void StepFollower::end_step(std::int64_t budget_bytes) {
  if (!in_step_) {
    return;
  }
  in_step_ = false;
  const StepPlan* followed = std::exchange(plan_, nullptr);
  if (record_.visits.empty() || record_.visits.size() == kVisitsMax) {
    return;
  }
  ++counters_.steps;
  counters_.steps_planned += planned_throughout_ ? 1 : 0;
  if (planned_throughout_) {
    note_followed(*followed);
  } else {
    shorter_[record_.training ? 1 : 0].times = 0;
    prefer_plan(record_, budget_bytes);
  }
  auto& past = past_[record_.training ? 1 : 0];
  if (planned_throughout_ ||
      (!plans_.empty() && plans_.front().record == record_)) {
    past.push_back(plans_.front().fingerprint);
  }
  if (past.size() > kPastMax) {
    past.erase(past.begin());
  }
}

// Ranks that leave out different parts have different records, so the order of plans, which they
// compare, does not depend on the record.
void StepFollower::note_followed(const StepPlan& plan) {
  const auto position = std::find_if(
      plans_.begin(), plans_.end(),
      [&](const StepPlan& other) { return &other == &plan; });
  plans_.splice(plans_.begin(), plans_, position);
  auto& shorter = shorter_[record_.training ? 1 : 0];
  if (plan.record == record_) {
    shorter.times = 0;
  } else if (shorter.times > 0 && shorter.record == record_) {
    ++shorter.times;
  } else {
    shorter.record = record_;
    shorter.times = 1;
  }
}

// Puts the plan with exactly this record first; makes it if it is not known.
void StepFollower::prefer_plan(
    const StepTrace& record, std::int64_t budget_bytes) {
  const auto known = std::find_if(
      plans_.begin(), plans_.end(),
      [&](const StepPlan& plan) { return plan.record == record; });
  if (known != plans_.end()) {
    plans_.splice(plans_.begin(), plans_, known);
  } else if (auto plan = make_step_plan(record, options_, budget_bytes)) {
    ++counters_.plans_made;
    plans_.push_front(*std::move(plan));
    if (plans_.size() > kPlansMax) {
      plans_.pop_back();
    }
  }
}

}  // namespace sherd::plan
