// SPDX-License-Identifier: Apache-2.0
//
// The byte budget of unsharded parameters: how many bytes of units may be whole at once. Presets
// are formulas over the units' sizes; a number given by the user is never exceeded. The caller
// decides which bytes count (those that `reshard` frees). Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "plan/unit_id.h"

namespace sherd::plan {

struct Budget {
  // Empty: unlimited.
  std::optional<std::int64_t> bytes = std::nullopt;
  // Set by a preset that assumed this largest visit; a larger visit raises `bytes` by the
  // difference. Empty: `bytes` is final.
  std::optional<std::int64_t> assumed_visit_bytes = std::nullopt;
};

struct UnitSizes {
  // By unit: its bytes when whole.
  std::vector<std::int64_t> bytes;
  // The unit of the parameters that no policy took; empty if there are none.
  std::optional<UnitId> root = std::nullopt;
  // By unit, or empty: whether it stays whole after its first visit, and so counts in later visits.
  std::vector<bool> kept = {};
};

// The functions below throw if a size is negative, the sum of sizes overflows, the root is not a
// unit, or `kept` has another length.

// The bytes of all units, called M below.
std::int64_t total_unit_bytes(const UnitSizes& units);

// The smallest possible budget: the largest visit, which is assumed to consist of the root unit,
// all kept units and the largest other unit.
std::int64_t budget_floor(const UnitSizes& units);

// root unit + largest visit + `ahead` times the largest unit that is not kept, at most M. It may
// grow.
Budget full_shard_budget(const UnitSizes& units, int ahead = 1);

// M: what was gathered in forward is still whole in backward.
Budget shard_grad_op_budget(const UnitSizes& units);

// The given bytes; throws if they are fewer than budget_floor(), which it names.
Budget explicit_budget(const UnitSizes& units, std::int64_t bytes);

}  // namespace sherd::plan
