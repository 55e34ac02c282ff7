// SPDX-License-Identifier: Apache-2.0
//
// An LRU cache policy for whole units: a visit brings in its units, and the least recently used
// ones make room within a byte budget. It is for steps without a plan. It only decides; the caller
// gathers and frees in the order returned. Ranks that make the same calls get the same decisions.
// Thread rule: one thread, or the caller's lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>
#include "base/status.h"
#include "plan/budget.h"
#include "plan/unit_id.h"

namespace sherd::plan {

class Residency {
 public:
  struct Decision {
    // Units to reshard before the first fetch, least recently used first.
    std::vector<UnitId> evict;
    // Units to unshard, in the order of the visit.
    std::vector<UnitId> fetch;
    // Set if a preset's budget grew for this visit: its new size.
    std::optional<std::int64_t> grown_budget_bytes;
    // One sentence, short enough not to allocate if there is nothing to do.
    std::string reason;
  };

  // At first no unit is whole. Throws if a size is negative, the sum overflows, or the budget is
  // below what it assumes.
  Residency(std::vector<std::int64_t> unit_bytes, Budget budget);
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  // Makes the units of the set whole and most recently used, the last one named most of all;
  // repetitions count once. Evicts neither pinned units nor units of the set; afterwards
  // resident_bytes() is within the budget. If the set and the pinned units exceed what a preset
  // assumed, its budget grows. If they exceed a fixed budget, changes nothing and returns
  // kInvalidArgument, naming the bytes needed, the units, the budget and the remedy. Throws, and
  // changes nothing, if a unit does not exist.
  Result<Decision> visit(std::span<const UnitId> units);

  // A pinned unit stays whole until it is unpinned as often as it was pinned. REQUIRES for pin:
  // resident. REQUIRES for unpin: pinned.
  void pin(UnitId unit);
  void unpin(UnitId unit);

  // Records that the caller made a unit whole; it becomes the most recently used. REQUIRES: not
  // resident, and within the budget.
  void admit(UnitId unit);

  // Records that the caller reshards a unit; returns false if it was not whole. REQUIRES: not
  // pinned.
  bool drop(UnitId unit);

  // As if all units had been used last in descending order, as in a backward.
  void order_by_unit();

  // Later visits stay within this budget; if a preset assumed a larger visit, within that.
  // REQUIRES: at least resident_bytes().
  void set_budget_bytes(std::int64_t bytes);
  // Replaces the budget. REQUIRES: no unit is whole.
  void set_budget(Budget budget);

  bool resident(UnitId unit) const { return state(unit).resident; }
  bool pinned(UnitId unit) const { return pins(unit) > 0; }
  int pins(UnitId unit) const { return state(unit).pins; }
  std::vector<UnitId> pinned_units() const;  // Ascending.
  int units() const { return static_cast<int>(states_.size()); }
  std::int64_t resident_bytes() const { return resident_bytes_; }
  // resident_bytes() never exceeds this; empty: unlimited.
  std::optional<std::int64_t> budget_bytes() const { return budget_.bytes; }
  const Budget& budget() const { return budget_; }

 private:
  struct State {
    std::int64_t bytes = 0;
    int pins = 0;
    bool resident = false;
    std::uint64_t last_use = 0;  // The value of clock_ at the last visit.
    std::uint64_t marked = 0;    // Equal to mark_: in the set being visited.
  };

  const State& state(UnitId unit) const;
  State& state(UnitId unit);
  void check_exists(UnitId unit) const;
  std::int64_t mark_set(std::span<const UnitId> units);
  Status check_floor(std::int64_t needed_bytes) const;
  void grow_budget(std::int64_t needed_bytes, Decision& decision);
  void make_room(std::int64_t fetch_bytes, Decision& decision);
  std::string reason_of(const Decision& decision) const;
  std::vector<UnitId> resident_by_last_use() const;
  void forget(UnitId unit);

  std::vector<State> states_;
  Budget budget_;
  std::int64_t resident_bytes_ = 0;
  std::int64_t pinned_bytes_ = 0;
  std::int64_t total_bytes_ = 0;
  std::uint64_t clock_ = 0;
  std::uint64_t mark_ = 0;
};

}  // namespace sherd::plan
