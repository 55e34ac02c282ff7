// SPDX-License-Identifier: Apache-2.0
//
// The byte budget for whole units: how much may be unsharded at once. Presets
// are formulas over the units' sizes; a number of bytes is the user's own word
// and never exceeded. Which bytes count is the caller's decision (those that
// `reshard` frees). Thread rule: pure functions and values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include "plan/unit_id.h"

namespace sherd::plan {

struct Budget {
  // None: unlimited.
  std::optional<std::int64_t> bytes = std::nullopt;
  // Set for a preset that was computed from the largest visit known so far: a
  // larger one raises `bytes` by the difference. Not set: `bytes` is final.
  std::optional<std::int64_t> assumed_visit_bytes = std::nullopt;
};

struct UnitSizes {
  // By unit; bytes when whole.
  std::span<const std::int64_t> bytes;
  // Owns what no policy matched; none when it owns nothing.
  std::optional<UnitId> root = std::nullopt;
};

// Functions below throw when a size is negative, their sum overflows, or the
// root is no unit.

// Every unit at once, called M.
std::int64_t total_unit_bytes(const UnitSizes& units);

// The least any budget can be: the largest visit, which is assumed to be the
// root unit and the largest other unit.
std::int64_t budget_floor(const UnitSizes& units);

// root unit + largest visit + largest unit (one ahead), at most M. Grows.
Budget full_shard_budget(const UnitSizes& units);

// M: what was gathered in forward is still whole in backward.
Budget shard_grad_op_budget(const UnitSizes& units);

// As given; throws, naming the floor, when less than budget_floor().
Budget explicit_budget(const UnitSizes& units, std::int64_t bytes);

}  // namespace sherd::plan
