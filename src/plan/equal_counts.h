// SPDX-License-Identifier: Apache-2.0
//
// EqualCounts finds the smallest share S such that parameters in a given order
// can be laid over ranks that own S elements each, without a boundary inside a
// block. For one S, putting each parameter at its earliest legal start is
// optimal, because an earlier end never hurts; so the search is over S alone.
// Feasibility is not monotone in S: the first multiples above the lower bound
// are tried one by one (exact), then the search is a heuristic. The problem is
// NP-hard when the order is free (arXiv 2602.22437).
// Thread rule: a value; const access from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace sherd::plan {

struct Block {
  std::int64_t numel = 0;
  std::int64_t granularity = 1;  // At most max(numel, 1).
};

struct EqualCountsOptions {
  int ranks = 1;
  std::int64_t start_alignment = 1;  // Of each parameter.
  std::int64_t share_alignment = 1;  // Of S; a multiple of start_alignment.
  // Performance. Multiples tried one by one before the heuristic; each costs
  // one pass over the parameters.
  int exact_trials_max = 1024;
};

class EqualCounts {
 public:
  EqualCounts(std::vector<Block> blocks, const EqualCountsOptions& options);

  // The smallest S found; 0 when there are no elements. Exact when it lies
  // within exact_trials_max steps of lower_bound().
  std::int64_t smallest_share() const;

  // No legal S is smaller: an even share, and the largest block.
  std::int64_t lower_bound() const;

  // Earliest legal starts for this share, or nothing when the last parameter
  // does not end within ranks * share. REQUIRES: a multiple of share_alignment.
  std::optional<std::vector<std::int64_t>> starts(std::int64_t share) const;

 private:
  bool fits(std::int64_t share) const;
  std::optional<std::int64_t> earliest_start(
      const Block& block, std::int64_t cursor, std::int64_t share) const;
  std::optional<std::int64_t> try_one_by_one() const;
  std::int64_t bisect(std::int64_t step) const;
  std::vector<std::int64_t> steps() const;

  std::vector<Block> blocks_;
  EqualCountsOptions options_;
  std::int64_t packed_numel_ = 0;  // With aligned starts and no other gap.
};

}  // namespace sherd::plan
