// SPDX-License-Identifier: Apache-2.0
//
// StepFollower watches the visits of a step, says what the plan of an earlier,
// equal step does before each, and makes plans of the steps that had none. It
// only decides; whoever asks gathers and drops.
//
// Ranks that follow plans must issue the same gathers in the same order. So
// they compare fingerprint() before each step, and follow only when all are
// equal; within a step the actions between two ends of a backward are always
// the same ones, whatever visits a rank left out.
// Thread rule: one thread, or the caller's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>
#include "plan/step_plan.h"

namespace sherd::plan {

struct PlannedActions {
  const VisitActions* actions = nullptr;  // Of a plan: until the step ends.
  bool in_backward = false;          // Of the visit they precede.
};

// In this order.
struct DueActions {
  // Set where a plan begins: what it takes to be whole; anything else is to be
  // dropped, what is missing to be gathered.
  std::optional<std::vector<UnitId>> whole;
  std::vector<PlannedActions> actions;
};

struct FollowerCounters {
  std::int64_t plans_made = 0;
  std::int64_t steps = 0;
  std::int64_t steps_planned = 0;  // From the first visit to the last.
  std::int64_t deviations = 0;     // Visits that were not ahead in the plan.
};

class StepFollower {
 public:
  explicit StepFollower(StepPlanOptions options);
  StepFollower(const StepFollower&) = delete;
  StepFollower& operator=(const StepFollower&) = delete;

  // Whether this visit is the first of a step. Ends the step before where that
  // had no publish: when, outside training, its first visit comes round again,
  // or the other mode begins.
  bool begins_step(
      const std::vector<UnitId>& units,
      bool training,
      std::int64_t budget_bytes);
  // Of all plans known.
  std::uint64_t fingerprint() const;
  // REQUIRES: between steps. `follow`: the ranks' fingerprints are equal.
  void begin_step(bool training, bool follow);

  // What the plan does before this visit; nothing without a plan, and where the
  // visit is not ahead in it: then the rest of the step has none, or another
  // one that began alike. REQUIRES: in a step; units ascending, not empty.
  DueActions visit(const std::vector<UnitId>& units, bool in_backward);
  // What the plan does up to there, visited or not.
  DueActions end_backward();
  // The rest of the step has no plan, on any rank.
  void leave();
  // The same for this rank alone, which others have to learn of.
  void depart();
  // Ranks know different plans. They would for ever: each adds its own.
  void forget_plans() { plans_.clear(); }
  // The step is over: makes a plan of it where it had none.
  void end_step(std::int64_t budget_bytes);

  bool following() const { return plan_ != nullptr; }
  // This rank departed from the plan it began with, in this step.
  bool departed() const { return departed_; }
  // The plan of the last step, if it had one.
  const StepPlan* latest() const {
    return plans_.empty() ? nullptr : &plans_.front();
  }
  const FollowerCounters& counters() const { return counters_; }

 private:
  void choose_plan();
  std::optional<std::size_t> find_ahead(const StepVisit& visit) const;
  const StepPlan* plan_with_same_beginning() const;
  std::size_t segment_end() const;
  std::vector<PlannedActions> advance(std::size_t next);

  const StepPlanOptions options_;
  std::list<StepPlan> plans_;  // Latest used first.
  StepTrace record_;
  bool in_step_ = false;
  bool ranks_agree_ = false;
  bool departed_ = false;
  bool planned_throughout_ = false;
  const StepPlan* plan_ = nullptr;
  std::size_t next_ = 0;  // The first position whose actions are to come.
  FollowerCounters counters_;
};

}  // namespace sherd::plan
