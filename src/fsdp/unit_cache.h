// SPDX-License-Identifier: Apache-2.0
//
// UnitCache keeps units gathered while operators use them, within the byte budget. It prefetches by
// the plan of an earlier, equal step where there is one, and gathers on demand what that left out.
// It owns the units' storages and knows nothing of gradients, optimizers or summoning. Thread rule:
// the engine's lock. Mechanism: docs/design/runtime.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>
#include <sherd/fsdp/fully_shard.h>
#include "autograd/managed_storage.h"
#include "exchange/exchange.h"
#include "fsdp/model_units.h"
#include "fsdp/parameter_integrity.h"
#include "plan/residency.h"
#include "plan/step_follower.h"

namespace sherd::fsdp {

struct UnitCacheOptions {
  plan::Budget budget;
  // Whole units are the shards themselves: nothing is ever dropped.
  bool replicated = false;
  // Whole units lie in memory that all ranks read: each rank visits units as it likes, without
  // budget.
  bool one_sided = false;
  // Closes the exchange, remembers the first failure, and throws it.
  std::function<void(const Status&)> fail;
  // Collective, at the beginning of a step: whether all ranks passed this number.
  std::function<bool(std::uint64_t)> all_ranks_agree;
};

class UnitCache {
 public:
  // The units that one operator uses, ascending.
  using Visit = std::vector<UnitId>;

  // Model and exchange must outlive it.
  UnitCache(
      const ModelUnits& model,
      exchange::Exchange& exchange,
      UnitCacheOptions options);
  UnitCache(const UnitCache&) = delete;
  UnitCache& operator=(const UnitCache&) = delete;

  // Makes the storages, empty, tagged for `listener`. Once.
  void make_storages(autograd::ParameterUseListener* listener);
  const Storages& storages() const { return storages_; }

  // Ranks follow plans, and compare them at the beginning of each step.
  bool planned() const { return !options_.replicated && !options_.one_sided; }

  // Makes the units whole. `training`: gradients are recorded. Before the first visit of a step
  // ranks compare their plans.
  void visit(const Visit& units, bool training, bool in_backward);
  // Whole units stay so while pinned.
  void pin(const Visit& units);
  void unpin(UnitId unit);

  // At the end of a backward: does what the plan has up to there.
  void end_backward();
  // Whether this rank has left its plan.
  bool departed() const { return follower_.departed(); }
  // Drops all and works without a plan until the step is over: when ranks may have different units
  // whole, and for users who move units themselves.
  void leave_plan();
  // Gathers what the budget has room for, and works without a plan likewise.
  void unshard();

  // Ends the step. With `keep_frozen` frozen units stay whole.
  void end_step(bool keep_frozen);

  // Leaves the plan, and drops replicated units, too.
  void release_all();
  // Gathers a unit in full precision past the cache, until drop_fetched(). Returns the addresses of
  // its flats. REQUIRES: release_all() was called.
  std::vector<void*> fetch(UnitId unit);
  void drop_fetched(UnitId unit) { exchange_.reshard(unit); }
  // Sets the memory of the unit's storages, or takes it away.
  void fill(UnitId unit, const std::vector<void*>& addresses);
  void empty(UnitId unit);

  std::int64_t budget_bytes() const {
    return residency_.budget_bytes().value_or(0);
  }
  std::int64_t resident_bytes_peak() const { return resident_bytes_peak_; }
  PlanReport plan_report() const;

 private:
  void begin_step(bool training);
  // A rank that takes another plan in backward gathers what that expects there.
  void carry_out(const plan::DueActions& due, bool in_backward);
  Visit admit(const Visit& units);
  void start(const Visit& units, exchange::UnshardOptions options);
  void finish(UnitId unit);
  std::vector<void*> addresses_of(UnitId unit);
  void drop(UnitId unit);
  // Drops the whole units for which `which` holds.
  void drop_if(const std::function<bool(UnitId)>& which);
  void drop_all();
  bool fits(UnitId unit) const;
  void bring_in(const Visit& units, bool in_backward);
  void assert_within_budget();

  const ModelUnits& model_;
  exchange::Exchange& exchange_;
  const UnitCacheOptions options_;
  const std::vector<std::int64_t> unit_bytes_;
  const std::int64_t all_bytes_;
  Storages storages_;          // By unit, by flat.
  plan::Residency residency_;  // Counts units being gathered as whole.
  plan::StepFollower follower_;
  std::set<UnitId> on_their_way_;
  bool by_hand_ = false;  // The user has moved units since the last step.
  std::int64_t resident_bytes_peak_ = 0;
};

// Whether all parameters of the unit are frozen, so that no step changes them.
bool is_frozen(const exchange::UnitSpec& unit);
// Bytes of each unit when whole.
std::vector<std::int64_t> bytes_by_unit(const ModelUnits& model);

}  // namespace sherd::fsdp
