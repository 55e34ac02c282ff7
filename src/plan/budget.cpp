// SPDX-License-Identifier: Apache-2.0
#include "plan/budget.h"

#include <algorithm>
#include <limits>
#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::plan {
namespace {

void check_units(const UnitSizes& units) {
  std::int64_t left = std::numeric_limits<std::int64_t>::max() / 4;
  for (std::size_t unit = 0; unit < units.bytes.size(); ++unit) {
    const std::int64_t bytes = units.bytes[unit];
    SHERD_CHECK(
        bytes >= 0 && bytes <= left, "[plan] unit ", unit, " has ", bytes,
        " bytes; expected at least 0 and a sum below 2^61");
    left -= bytes;
  }
  SHERD_CHECK(
      !units.root ||
          (*units.root >= 0 &&
           static_cast<std::size_t>(*units.root) < units.bytes.size()),
      "[plan] the root is unit ", units.root.value_or(-1), " of ",
      units.bytes.size(), " units");
  SHERD_CHECK(
      units.kept.empty() || units.kept.size() == units.bytes.size(), "[plan] ",
      units.kept.size(), " units are marked as kept or not, of ",
      units.bytes.size());
}

std::int64_t root_bytes(const UnitSizes& units) {
  return units.root ? units.bytes[static_cast<std::size_t>(*units.root)] : 0;
}

bool is_kept(const UnitSizes& units, std::size_t unit) {
  return !units.kept.empty() && units.kept[unit];
}

std::int64_t largest_dropped_bytes(const UnitSizes& units) {
  std::int64_t largest = 0;
  for (std::size_t unit = 0; unit < units.bytes.size(); ++unit) {
    if (!is_kept(units, unit)) {
      largest = std::max(largest, units.bytes[unit]);
    }
  }
  return largest;
}

}  // namespace

std::int64_t total_unit_bytes(const UnitSizes& units) {
  check_units(units);
  std::int64_t total = 0;
  for (const std::int64_t bytes : units.bytes) {
    total += bytes;
  }
  return total;
}

// A visit is a set, so the root is not counted twice.
std::int64_t budget_floor(const UnitSizes& units) {
  check_units(units);
  std::int64_t always = 0;
  std::int64_t largest = 0;
  for (std::size_t unit = 0; unit < units.bytes.size(); ++unit) {
    const bool root =
        units.root && static_cast<std::size_t>(*units.root) == unit;
    if (root || is_kept(units, unit)) {
      always += units.bytes[unit];
    } else {
      largest = std::max(largest, units.bytes[unit]);
    }
  }
  return always + largest;
}

Budget full_shard_budget(const UnitSizes& units, int ahead) {
  const std::int64_t visit = budget_floor(units);
  const std::int64_t total = total_unit_bytes(units);
  const std::int64_t bytes_ahead =
      multiply_capped(ahead, largest_dropped_bytes(units));
  return {
      .bytes = std::min(total, root_bytes(units) + visit + bytes_ahead),
      .assumed_visit_bytes = visit};
}

Budget shard_grad_op_budget(const UnitSizes& units) {
  return {.bytes = total_unit_bytes(units)};
}

Budget explicit_budget(const UnitSizes& units, std::int64_t bytes) {
  const std::int64_t floor = budget_floor(units);
  SHERD_CHECK(
      bytes >= floor, "[plan] a budget of ", bytes,
      " bytes is below its floor of ", floor,
      " bytes, the root unit, units with keep_whole and the largest other "
      "unit; raise it or cut the model into smaller units");
  return {.bytes = bytes};
}

}  // namespace sherd::plan
