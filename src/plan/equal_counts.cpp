// SPDX-License-Identifier: Apache-2.0
#include "plan/equal_counts.h"

#include <algorithm>
#include <set>
#include <utility>
#include "base/check.h"
#include "plan/arithmetic.h"

namespace sherd::plan {

EqualCounts::EqualCounts(
    std::vector<Block> blocks, const EqualCountsOptions& options)
    : blocks_(std::move(blocks)), options_(options) {
  SHERD_ASSERT(options_.share_alignment % options_.start_alignment == 0);
  for (const Block& block : blocks_) {
    packed_numel_ =
        round_up(packed_numel_, options_.start_alignment) + block.numel;
  }
}

std::int64_t EqualCounts::lower_bound() const {
  std::int64_t share = divide_up(packed_numel_, options_.ranks);
  for (const Block& block : blocks_) {
    if (block.numel > 0) {
      share = std::max(share, block.granularity);
    }
  }
  return round_up(share, options_.share_alignment);
}

std::int64_t EqualCounts::smallest_share() const {
  if (packed_numel_ == 0) {
    return 0;
  }
  if (const auto exact = try_one_by_one()) {
    return *exact;
  }
  std::int64_t best = kSizeCeiling;
  for (const std::int64_t step : steps()) {
    best = std::min(best, bisect(step));
  }
  return best;
}

std::optional<std::int64_t> EqualCounts::try_one_by_one() const {
  std::int64_t share = lower_bound();
  for (int trial = 0; trial < options_.exact_trials_max; ++trial) {
    if (fits(share)) {
      return share;
    }
    share += options_.share_alignment;
  }
  return std::nullopt;
}

// A multiple of each granularity alone, and of the growing set of them: only
// parameters that span two boundaries force S to be a multiple of theirs.
std::vector<std::int64_t> EqualCounts::steps() const {
  std::set<std::int64_t> granularities;
  for (const Block& block : blocks_) {
    granularities.insert(block.granularity);
  }
  std::set<std::int64_t> found{options_.share_alignment};
  std::int64_t all = options_.share_alignment;
  for (const std::int64_t granularity : granularities) {
    found.insert(lcm_capped(options_.share_alignment, granularity));
    all = lcm_capped(all, granularity);
    found.insert(all);
  }
  found.erase(kSizeCeiling);
  return {found.begin(), found.end()};
}

// The invariant: `high` fits, since everything fits in one rank's share.
std::int64_t EqualCounts::bisect(std::int64_t step) const {
  std::int64_t low = divide_up(lower_bound(), step) - 1;
  std::int64_t high = divide_up(std::max(packed_numel_, lower_bound()), step);
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle * step) ? high : low) = middle;
  }
  return high * step;
}

bool EqualCounts::fits(std::int64_t share) const {
  const std::int64_t limit = multiply_capped(share, options_.ranks);
  std::int64_t cursor = 0;
  for (const Block& block : blocks_) {
    const auto start = earliest_start(block, cursor, share);
    if (!start || *start + block.numel > limit) {
      return false;
    }
    cursor = *start + block.numel;
  }
  return true;
}

std::optional<std::vector<std::int64_t>> EqualCounts::starts(
    std::int64_t share) const {
  if (!fits(share)) {
    return std::nullopt;
  }
  std::vector<std::int64_t> result;
  std::int64_t cursor = 0;
  for (const Block& block : blocks_) {
    result.push_back(earliest_start(block, cursor, share).value());
    cursor = result.back() + block.numel;
  }
  return result;
}

// In the cursor's rank the earliest legal start leaves whole aligned blocks
// before the boundary; it also spans the fewest boundaries. A second boundary
// is legal only when blocks divide the share. The next rank is tried from its
// beginning; all ranks after that look the same, so two tries decide.
std::optional<std::int64_t> EqualCounts::earliest_start(
    const Block& block, std::int64_t cursor, std::int64_t share) const {
  cursor = round_up(cursor, options_.start_alignment);
  if (block.numel == 0) {
    return cursor;
  }
  const std::int64_t step =
      lcm_capped(options_.start_alignment, block.granularity);
  for (int attempt = 0; attempt < 2; ++attempt) {
    const std::int64_t boundary = (cursor / share + 1) * share;
    if (cursor + block.numel <= boundary) {
      return cursor;
    }
    const std::int64_t start = boundary - (boundary - cursor) / step * step;
    const bool one_boundary = start + block.numel <= boundary + share;
    if (start < boundary && (one_boundary || share % block.granularity == 0)) {
      return start;
    }
    cursor = boundary;
  }
  return std::nullopt;
}

}  // namespace sherd::plan
