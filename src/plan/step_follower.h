// SPDX-License-Identifier: Apache-2.0
//
// A state machine that records the visits of a step, follows the plan of an earlier, equal step,
// and makes plans of the steps that had none. It only decides; the caller gathers and drops.
//
// Ranks that follow plans issue the same gathers in the same order; how: docs/design/runtime.md,
// "Whole units". Thread rule: one thread, or the caller's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>
#include "plan/step_plan.h"

namespace sherd::plan {

class StepFollower {
 public:
  struct PlannedActions {
    const VisitActions* actions = nullptr;  // Valid until the step ends.
    bool in_backward = false;               // Whether the visit is in backward.
  };

  // What the caller must do now: first reach `whole`, then take the actions.
  struct DueActions {
    // Set when a plan begins: exactly these units must be whole.
    std::optional<std::vector<UnitId>> whole;
    std::vector<PlannedActions> actions;
  };

  struct Counters {
    std::int64_t plans_made = 0;
    std::int64_t steps = 0;
    // Planned from the first visit to the last.
    std::int64_t steps_planned = 0;
    std::int64_t deviations = 0;  // Visits that the plan did not have ahead.
  };

  explicit StepFollower(StepPlanOptions options);
  StepFollower(const StepFollower&) = delete;
  StepFollower& operator=(const StepFollower&) = delete;

  // Whether this visit is the first of a step; units that stay whole anyway are left out. Ends a
  // step that had no publish: an evaluation when its first visit comes again, or when training
  // begins; a training step that has had no backward, and so was aborted, when its first visit
  // comes again outside training, which its plan does not have ahead, and another visit outside
  // training follows. Its other visits without gradients are part of it.
  bool begins_step(
      const std::vector<UnitId>& units,
      bool training,
      std::int64_t budget_bytes);
  // A digest of all known plans, and of which steps followed them.
  std::uint64_t fingerprint() const;
  // A digest of the shorter step: one that has left out the same parts of its plan four times in a
  // row. 0 if there is none. Training and evaluation have their own.
  std::uint64_t shorter_step(bool training) const;
  // The next step follows the plan of exactly that step. REQUIRES: between steps; on all ranks,
  // which know the same plans and the same shorter step.
  void prefer_shorter_step(bool training, std::int64_t budget_bytes);
  // `follow`: whether the ranks' fingerprints are equal. REQUIRES: between steps.
  void begin_step(bool training, bool follow);

  // What the plan does before this visit; nothing without a plan. If the visit is not ahead in the
  // plan, the rest of the step follows another plan with the same beginning, or none. REQUIRES: in
  // a step; units ascending, not empty.
  DueActions visit(const std::vector<UnitId>& units, bool in_backward);
  // What the plan does up to the end of this backward, including actions before visits that did not
  // happen.
  DueActions end_backward();
  // The rest of the step has no plan, on all ranks.
  void leave();
  // Ends the step without learning from it.
  void drop_step();
  // leave() only on this rank; the caller must tell the others.
  void depart();
  // For ranks that know different plans, which would never become equal by themselves.
  void forget_plans();
  bool frozen(UnitId unit) const {
    return options_.frozen[static_cast<std::size_t>(unit)];
  }
  // From now on steps change the unit's values. Forgets all plans. REQUIRES: no plan is being
  // followed.
  void thaw(UnitId unit);
  // Makes new versions of all known plans for another budget, and drops those that do not fit it.
  // REQUIRES: between steps.
  void replan(std::int64_t budget_bytes);
  // Ends the step; makes a plan of it unless it followed one throughout.
  void end_step(std::int64_t budget_bytes);

  bool following() const { return plan_ != nullptr; }
  // Whether this rank departed in this step from the plan with which it began.
  bool departed() const { return departed_; }
  // The plan of the last step that had one.
  const StepPlan* latest() const {
    return plans_.empty() ? nullptr : &plans_.front();
  }
  const Counters& counters() const { return counters_; }

 private:
  // A step that followed a plan throughout, but left out parts of it.
  struct ShorterStep {
    StepTrace record;
    int times = 0;  // In a row.
  };

  void note_possible_end(const std::vector<UnitId>& units, bool training);
  void choose_plan();
  void prefer_plan(const StepTrace& record, std::int64_t budget_bytes);
  void note_followed(const StepPlan& plan);
  std::optional<std::size_t> find_ahead(const StepTrace::Visit& visit) const;
  const StepPlan* plan_with_same_beginning() const;
  std::size_t segment_end() const;
  std::vector<PlannedActions> advance(std::size_t next);

  StepPlanOptions options_;
  std::list<StepPlan> plans_;  // The most recently used first.
  // Fingerprints of the plans of the latest steps: of evaluation, of training.
  std::array<std::vector<std::uint64_t>, 2> past_;
  std::array<ShorterStep, 2> shorter_;  // Of evaluation, of training.
  StepTrace record_;
  std::vector<UnitId> first_;  // The units of the visit that began the step.
  bool in_step_ = false;
  bool ranks_agree_ = false;
  bool departed_ = false;
  bool planned_throughout_ = false;
  bool may_be_aborted_ = false;
  bool planned_again_ =
      false;  // The plan has the latest visit, of first_, there.
  const StepPlan* plan_ = nullptr;
  std::size_t next_ = 0;  // The first position whose actions are still due.
  Counters counters_;
};

}  // namespace sherd::plan
