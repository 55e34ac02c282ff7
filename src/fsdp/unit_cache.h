// SPDX-License-Identifier: Apache-2.0
//
// UnitCache keeps units gathered while operators use them, within the byte budget. It prefetches by
// the plan of an earlier, equal step if there is one, and gathers on demand what the plan left out.
// It owns the units' storages and knows nothing of gradients, optimizers or summoning. Thread rule:
// the engine's lock. Mechanism: docs/design/runtime.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>
#include <sherd/fsdp/fully_shard.h>
#include "autograd/managed_storage.h"
#include "exchange/exchange.h"
#include "fsdp/model_units.h"
#include "fsdp/parameter_integrity.h"
#include "fsdp/step_recorder.h"
#include "plan/residency.h"
#include "plan/step_follower.h"

namespace sherd::fsdp {

class UnitCache {
 public:
  // The units that one operator uses, ascending.
  using Visit = std::vector<UnitId>;
  struct RanksAgree {
    bool plans = false;
    bool shorter_step = false;
  };
  struct Options {
    plan::Budget budget;
    // Whether whole units are the shards themselves, so that nothing is ever dropped.
    bool replicated = false;
    // Whether whole units lie in memory that all ranks read: each rank then visits units in any
    // order, without a budget.
    bool one_sided = false;
    // How many visits before its use a plan may gather a unit.
    int prefetch_visits = 1;
    // Throws a failure, having closed the exchange and remembered the first one.
    std::function<void(const Status&)> require;
    // Collective, at the beginning of a step: which of the numbers are the same on all ranks.
    std::function<RanksAgree(std::uint64_t plans, std::uint64_t shorter_step)>
        all_ranks_agree;
  };

  // Model and exchange must outlive it.
  UnitCache(
      const ModelUnits& model, exchange::Exchange& exchange, Options options);
  UnitCache(const UnitCache&) = delete;
  UnitCache& operator=(const UnitCache&) = delete;

  // Makes the storages, empty and tagged for `listener`. Call it once.
  void make_storages(autograd::ParameterUseListener* listener);
  const Storages& storages() const { return storages_; }

  // Whether ranks follow plans; they compare them at the beginning of each step.
  bool planned() const { return !options_.replicated && !options_.one_sided; }

  // From now on the recorder times gathers; null: none does. REQUIRES for one: planned().
  void set_recorder(StepRecorder* recorder) { recorder_ = recorder; }

  // Makes the units whole. `training`: whether gradients are recorded. Before the first visit of a
  // step ranks compare their plans.
  void visit(const Visit& units, bool training, bool in_backward);
  // Whole units stay so while they are pinned.
  void pin(const Visit& units);
  void unpin(UnitId unit);
  // Throws Error when an operator uses a unit, which release_all() could not drop; `what` is what the
  // user asked for.
  void refuse_in_use(const char* what) const;

  // Call it at the end of a backward: does what the plan has up to there.
  void end_backward();
  // Whether this rank has left its plan.
  bool departed() const { return follower_.departed(); }
  // At the end of a backward, in which ranks may have visited different units: forgets the order of
  // visits, by which units make room for each other. Returns a digest of which units are whole, for
  // ranks to compare; 0 where they need not be the same.
  std::uint64_t settle_order();
  // Drops all units and works without a plan until the step is over: for ranks that may have
  // different units whole.
  void leave_plan();
  // Drops all units and ends the step without learning from it: for ranks that gave it up at
  // different visits. The next visit outside backward begins another.
  void abandon_step();
  // leave_plan() for users who move units themselves, except that units that an operator uses stay
  // whole.
  void reshard();
  // While some ranks have no inputs and only assist, units are gathered on demand and without a
  // plan, in forward as in a backward in which ranks differ. Drops all units when this changes.
  void set_uneven(bool uneven);
  // Gathers the units for which the budget has room, and also works without a plan until the step
  // is over.
  void unshard();

  // Starts to gather those of the units for which the budget has room. The plan stays in use: it
  // drops them when it needs their room.
  void start_early(const Visit& units, bool in_backward);
  // Waits for their gathers; returns whether all of them are whole.
  bool finish_early(const Visit& units);
  // Drops those that no operator uses. The plan stays in use.
  void drop_unused(const Visit& units);

  // Ends the step. With `keep_frozen`, frozen units stay whole.
  void end_step(bool keep_frozen);
  // Whether no step changes the unit: it started frozen, and was not thawed.
  bool frozen(UnitId unit) const { return follower_.frozen(unit); }
  // From now on steps change the unit; leaves the plan, and forgets plans that kept it whole
  // between steps. Called on all ranks.
  void thaw(UnitId unit);

  // Leaves the plan, and drops replicated units, too. REQUIRES: no operator uses a unit.
  void release_all();
  // Gathers a unit in full precision, bypassing the cache, until drop_fetched(). Returns the
  // addresses of its flats. The exchange keeps at most `slot_bytes_max` bytes in slots (0: no
  // limit); units that are otherwise cast need no slot. REQUIRES: release_all() was called.
  std::vector<void*> fetch(UnitId unit, std::int64_t slot_bytes_max);
  void drop_fetched(UnitId unit) { exchange_.reshard(unit); }
  // Called after units were fetched under another limit: the exchange frees slots when it gathers
  // under the limit of the cache.
  void note_slots_kept() {
    former_slot_bytes_ = exchange_.counters().slot_bytes;
  }
  // Sets the memory of the unit's storages, or takes it away.
  void fill(UnitId unit, const std::vector<void*>& addresses);
  void empty(UnitId unit);

  // Between steps. Drops all units, and plans made for another budget. REQUIRES: planned().
  void set_budget_bytes(std::int64_t bytes);
  // Between steps. Drops all units and makes new plans. REQUIRES: planned().
  void set_budget(plan::Budget budget);
  std::int64_t budget_bytes() const {
    return residency_.budget_bytes().value_or(0);
  }
  const plan::Budget& budget() const { return residency_.budget(); }
  std::int64_t resident_bytes_peak() const { return resident_bytes_peak_; }
  PlanReport plan_report() const;

 private:
  void settle() const;
  void note_gather(UnitId unit, StepRecorder::Gather gather, Instant begin);
  void begin_step(bool training);
  Visit pinned_by_operators() const;
  // A rank that changes to another plan in backward gathers there what that plan expects to be
  // whole.
  void carry_out(const plan::StepFollower::DueActions& due, bool in_backward);
  Visit admit(const Visit& units);
  void start(const Visit& units, exchange::UnshardOptions options);
  void start_within(
      const Visit& units, const exchange::UnshardOptions& options);
  void finish(UnitId unit);
  std::vector<void*> addresses_of(UnitId unit);
  void drop(UnitId unit);
  // Drops the whole units for which `which` holds.
  void drop_if(const std::function<bool(UnitId)>& which);
  void drop_all();
  bool fits(UnitId unit) const;
  void make_room(UnitId unit);
  void bring_in(const Visit& units, bool in_backward);
  void assert_within_budget();
  // Keeps those of the whole units that were requested to stay whole.
  void keep(const Visit& units);

  const ModelUnits& model_;
  exchange::Exchange& exchange_;
  const Options options_;
  const std::vector<std::int64_t> unit_bytes_;
  const std::int64_t all_bytes_;
  StepRecorder* recorder_ = nullptr;
  Storages storages_;  // By unit, by flat.
  // By unit, flat: the error.
  std::vector<std::vector<std::string>> why_empty_;
  plan::Residency residency_;  // Counts units being gathered as whole.
  plan::StepFollower follower_;
  std::set<UnitId> on_their_way_;
  std::set<UnitId> early_;  // Whole before the plan expects it.
  std::set<UnitId> kept_;   // Pinned until they are dropped.
  bool uneven_ = false;
  bool by_hand_ = false;  // The user has moved units since the last step.
  std::int64_t resident_bytes_peak_ = 0;
  // Bytes of slots kept under a larger budget, which the exchange frees when it gathers under the
  // new one.
  std::int64_t former_slot_bytes_ = 0;
};

// The budget of the given bytes, or that of the strategy. Throws Error for bytes below the floor.
plan::Budget budget_of(
    const ModelUnits& model,
    Strategy strategy,
    std::optional<std::int64_t> bytes,
    int prefetch_visits);

}  // namespace sherd::fsdp
