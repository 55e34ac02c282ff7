// SPDX-License-Identifier: Apache-2.0
//
// The byte budget of unsharded parameters: how many bytes of units may be whole at once. Presets
// are formulas over the units' sizes; a number given by the user is never exceeded. The caller
// decides which bytes count (those that `reshard` frees). Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>
#include "plan/unit_id.h"

namespace sherd::plan {

struct Budget {
  // Empty: unlimited.
  std::optional<std::int64_t> bytes = std::nullopt;
  // Set by a preset that assumed this largest visit: a larger one raises `bytes` by the difference.
  // Empty: `bytes` is final.
  std::optional<std::int64_t> assumed_visit_bytes = std::nullopt;
};

struct UnitSizes {
  // By unit: its bytes when whole.
  std::span<const std::int64_t> bytes;
  // The unit of what no policy matched; empty when that is nothing.
  std::optional<UnitId> root = std::nullopt;
  // By unit, or empty: it stays whole from its first visit on, and so is part of later ones.
  std::vector<bool> kept = {};
};

// The functions below throw when a size is negative, their sum overflows, the root is no unit, or
// `kept` has another length.

// All units at once, called M.
std::int64_t total_unit_bytes(const UnitSizes& units);

// The least any budget can be: the largest visit, which is assumed to be the root unit, all kept
// units and the largest other unit.
std::int64_t budget_floor(const UnitSizes& units);

// root unit + largest visit + `ahead` times the largest unit that is not kept, at most M. Grows.
Budget full_shard_budget(const UnitSizes& units, int ahead = 1);

// M: what was gathered in forward is still whole in backward.
Budget shard_grad_op_budget(const UnitSizes& units);

// The bytes given; throws, naming the floor, when they are fewer than budget_floor().
Budget explicit_budget(const UnitSizes& units, std::int64_t bytes);

}  // namespace sherd::plan
