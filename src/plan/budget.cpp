// SPDX-License-Identifier: Apache-2.0
#include "plan/budget.h"

#include <algorithm>
#include <limits>
#include "base/check.h"

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
}

std::int64_t root_bytes(const UnitSizes& units) {
  return units.root ? units.bytes[static_cast<std::size_t>(*units.root)] : 0;
}

std::int64_t largest_unit_bytes(const UnitSizes& units) {
  std::int64_t largest = 0;
  for (const std::int64_t bytes : units.bytes) {
    largest = std::max(largest, bytes);
  }
  return largest;
}

// A visit is a set, so the root does not count twice.
std::int64_t assumed_visit_bytes(const UnitSizes& units) {
  std::int64_t largest = 0;
  for (std::size_t unit = 0; unit < units.bytes.size(); ++unit) {
    if (!units.root || static_cast<std::size_t>(*units.root) != unit) {
      largest = std::max(largest, units.bytes[unit]);
    }
  }
  return root_bytes(units) + largest;
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

std::int64_t budget_floor(const UnitSizes& units) {
  const std::int64_t total = total_unit_bytes(units);
  if (!units.visit_bytes_max) {
    return assumed_visit_bytes(units);
  }
  SHERD_CHECK(
      *units.visit_bytes_max >= 0 && *units.visit_bytes_max <= total,
      "[plan] the largest visit has ", *units.visit_bytes_max,
      " bytes; all units together have ", total);
  return *units.visit_bytes_max;
}

Budget full_shard_budget(const UnitSizes& units) {
  const std::int64_t visit = budget_floor(units);
  const std::int64_t total = total_unit_bytes(units);
  const std::int64_t root = root_bytes(units);
  const std::int64_t largest = largest_unit_bytes(units);
  const std::int64_t bytes = std::min(total, root + visit + largest);
  return {
      .bytes = bytes,
      .assumed_visit_bytes = visit,
      .reason =
          str("full_shard: root ", root, " + ",
              units.visit_bytes_max ? "recorded" : "assumed", " largest visit ",
              visit, " + largest unit ", largest, ", at most all units ", total,
              ": ", bytes, " bytes")};
}

Budget shard_grad_op_budget(const UnitSizes& units) {
  const std::int64_t total = total_unit_bytes(units);
  return {
      .bytes = total,
      .reason = str("shard_grad_op: all units, ", total, " bytes")};
}

Budget explicit_budget(const UnitSizes& units, std::int64_t bytes) {
  const std::int64_t floor = budget_floor(units);
  SHERD_CHECK(
      bytes >= floor, "[plan] a budget of ", bytes,
      " bytes is below its floor of ", floor, " bytes, ",
      units.visit_bytes_max ? "the largest recorded visit"
                            : "the root unit and the largest other unit",
      "; raise it or cut the model into smaller units");
  return {
      .bytes = bytes,
      .reason = str("given: ", bytes, " bytes, the floor is ", floor)};
}

}  // namespace sherd::plan
