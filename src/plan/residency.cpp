// SPDX-License-Identifier: Apache-2.0
#include "plan/residency.h"

#include <algorithm>
#include <utility>
#include "base/check.h"

namespace sherd::plan {

Residency::Residency(std::vector<std::int64_t> unit_bytes, Budget budget)
    : budget_(std::move(budget)) {
  total_bytes_ = total_unit_bytes({.bytes = unit_bytes});
  SHERD_CHECK(
      budget_.bytes.value_or(0) >= 0, "[plan] a budget of ",
      budget_.bytes.value_or(0), " bytes; expected at least 0");
  SHERD_CHECK(
      !budget_.bytes ||
          budget_.assumed_visit_bytes.value_or(0) <= *budget_.bytes,
      "[plan] a budget of ", budget_.bytes.value_or(0),
      " bytes cannot hold the visit of ",
      budget_.assumed_visit_bytes.value_or(0), " bytes it assumes");
  for (const std::int64_t bytes : unit_bytes) {
    states_.emplace_back().bytes = bytes;
  }
}

void Residency::check_exists(UnitId unit) const {
  SHERD_CHECK(
      unit >= 0 && unit < units(), "[plan] no unit ", unit, " among ", units());
}

const Residency::State& Residency::state(UnitId unit) const {
  check_exists(unit);
  return states_[static_cast<std::size_t>(unit)];
}

Residency::State& Residency::state(UnitId unit) {
  check_exists(unit);
  return states_[static_cast<std::size_t>(unit)];
}

Result<Residency::Decision> Residency::visit(std::span<const UnitId> units) {
  std::for_each(units.begin(), units.end(), [&](UnitId u) { check_exists(u); });
  const std::int64_t needed_bytes = pinned_bytes_ + mark_set(units);
  if (Status floor = check_floor(needed_bytes); !floor.ok()) {
    return floor;
  }
  Decision decision;
  grow_budget(needed_bytes, decision);

  std::int64_t fetch_bytes = 0;
  for (const UnitId unit : units) {
    State& visited = state(unit);
    if (!visited.resident) {
      // Also prevents a repetition from being fetched.
      visited.resident = true;
      fetch_bytes += visited.bytes;
      decision.fetch.push_back(unit);
    }
  }
  make_room(fetch_bytes, decision);
  for (const UnitId unit : units) {
    state(unit).last_use = ++clock_;
  }
  resident_bytes_ += fetch_bytes;
  SHERD_ASSERT(resident_bytes_ <= budget_.bytes.value_or(total_bytes_));
  decision.reason = reason_of(decision);
  return decision;
}

// Returns the bytes of the set that are not pinned.
std::int64_t Residency::mark_set(std::span<const UnitId> units) {
  ++mark_;
  std::int64_t bytes = 0;
  for (const UnitId unit : units) {
    State& visited = state(unit);
    if (visited.marked != mark_ && visited.pins == 0) {
      bytes += visited.bytes;
    }
    visited.marked = mark_;
  }
  return bytes;
}

Status Residency::check_floor(std::int64_t needed_bytes) const {
  if (!budget_.bytes || budget_.assumed_visit_bytes ||
      needed_bytes <= *budget_.bytes) {
    return {};
  }
  std::string names;
  for (UnitId unit = 0; unit < units(); ++unit) {
    const State& needed = state(unit);
    if (needed.marked == mark_ || needed.pins > 0) {
      names +=
          str(names.empty() ? "" : ", ", unit, " (", needed.bytes,
              needed.pins > 0 ? " bytes, in use)" : " bytes)");
    }
  }
  return {
      ErrorCode::kInvalidArgument,
      str("[plan] ", needed_bytes, " bytes must be whole at once, units ",
          names, ", but the budget is ", *budget_.bytes,
          " bytes; raise it to at least ", needed_bytes,
          " or cut the model into smaller units")};
}

// A preset grows by as much as the visit exceeds the assumed one, up to the bytes of all units.
void Residency::grow_budget(std::int64_t needed_bytes, Decision& decision) {
  if (!budget_.bytes || !budget_.assumed_visit_bytes ||
      needed_bytes <= *budget_.assumed_visit_bytes) {
    return;
  }
  const std::int64_t more = needed_bytes - *budget_.assumed_visit_bytes;
  budget_.assumed_visit_bytes = needed_bytes;
  const std::int64_t bytes = std::min(*budget_.bytes + more, total_bytes_);
  if (bytes > *budget_.bytes) {
    budget_.bytes = bytes;
    decision.grown_budget_bytes = bytes;
  }
}

void Residency::make_room(std::int64_t fetch_bytes, Decision& decision) {
  if (!budget_.bytes || resident_bytes_ + fetch_bytes <= *budget_.bytes) {
    return;
  }
  for (const UnitId unit : resident_by_last_use()) {
    if (resident_bytes_ + fetch_bytes <= *budget_.bytes) {
      return;
    }
    if (state(unit).pins == 0 && state(unit).marked != mark_) {
      forget(unit);
      decision.evict.push_back(unit);
    }
  }
}

std::string Residency::reason_of(const Decision& decision) const {
  if (decision.fetch.empty() && !decision.grown_budget_bytes) {
    return "whole already";
  }
  std::string text =
      str("fetches ", decision.fetch.size(), " units, evicts the ",
          decision.evict.size(), " least recently used; ", resident_bytes_,
          " bytes are whole, budget ");
  text += budget_.bytes ? std::to_string(*budget_.bytes) : "unlimited";
  if (decision.grown_budget_bytes) {
    text +=
        str(", grown because a visit of ", *budget_.assumed_visit_bytes,
            " bytes is larger than was assumed");
  }
  return text;
}

void Residency::order_by_unit() {
  for (UnitId unit = units(); unit-- > 0;) {
    state(unit).last_use = ++clock_;
  }
}

std::vector<UnitId> Residency::resident_by_last_use() const {
  std::vector<UnitId> order;
  for (UnitId unit = 0; unit < units(); ++unit) {
    if (state(unit).resident) {
      order.push_back(unit);
    }
  }
  std::sort(order.begin(), order.end(), [&](UnitId a, UnitId b) {
    return state(a).last_use < state(b).last_use;
  });
  return order;
}

void Residency::forget(UnitId unit) {
  state(unit).resident = false;
  resident_bytes_ -= state(unit).bytes;
}

void Residency::pin(UnitId unit) {
  State& pinned = state(unit);
  SHERD_ASSERT(pinned.resident, "unit ", unit, " is pinned but not whole");
  if (++pinned.pins == 1) {
    pinned_bytes_ += pinned.bytes;
  }
}

void Residency::unpin(UnitId unit) {
  State& pinned = state(unit);
  SHERD_ASSERT(pinned.pins > 0, "unit ", unit, " is unpinned too often");
  if (--pinned.pins == 0) {
    pinned_bytes_ -= pinned.bytes;
  }
}

void Residency::admit(UnitId unit) {
  State& admitted = state(unit);
  SHERD_ASSERT(!admitted.resident, "unit ", unit, " is whole already");
  admitted.resident = true;
  admitted.last_use = ++clock_;
  resident_bytes_ += admitted.bytes;
  SHERD_ASSERT(resident_bytes_ <= budget_.bytes.value_or(total_bytes_));
}

void Residency::set_budget_bytes(std::int64_t bytes) {
  budget_.bytes = std::max(bytes, budget_.assumed_visit_bytes.value_or(0));
  SHERD_ASSERT(resident_bytes_ <= *budget_.bytes);
}

void Residency::set_budget(Budget budget) {
  SHERD_ASSERT(resident_bytes_ == 0);
  budget_ = std::move(budget);
}

std::vector<UnitId> Residency::pinned_units() const {
  std::vector<UnitId> found;
  for (UnitId unit = 0; pinned_bytes_ > 0 && unit < units(); ++unit) {
    if (state(unit).pins > 0) {
      found.push_back(unit);
    }
  }
  return found;
}

bool Residency::drop(UnitId unit) {
  const State& dropped = state(unit);
  SHERD_ASSERT(dropped.pins == 0, "unit ", unit, " is dropped while pinned");
  const bool was_resident = dropped.resident;
  if (was_resident) {
    forget(unit);
  }
  return was_resident;
}

}  // namespace sherd::plan
