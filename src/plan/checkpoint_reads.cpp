// SPDX-License-Identifier: Apache-2.0
#include "plan/checkpoint_reads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include "base/check.h"

namespace sherd::plan {
namespace {

// The wanted part of a piece.
struct Candidate {
  ElementRange range;  // Not empty.
  int file = 0;
  int piece = 0;
};

// The candidates that reach farthest so far.
struct FurthestCandidates {
  std::int64_t end = 0;
  std::vector<int> pieces;

  void add(const Candidate& candidate) {
    if (candidate.range.end > end) {
      end = candidate.range.end;
      pieces.clear();
    }
    if (candidate.range.end == end) {
      pieces.push_back(candidate.piece);
    }
  }
};

template <typename... What>
void check_range(const ElementRange& range, const What&... what) {
  SHERD_CHECK(
      range.begin >= 0 && range.end >= range.begin, "[plan] expected ", what...,
      " to have 0 <= begin <= end, found [", range.begin, ", ", range.end, ")");
}

// Sorted by begin, so that one pass finds them as they become usable, and copies by file, so that a
// reader gets the same file whatever the order of the pieces.
std::vector<Candidate> candidates_of(
    std::span<const SavedPiece> pieces, const ElementRange& wanted) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ElementRange& range = pieces[i].range;
    check_range(range, "piece ", i);
    const ElementRange part{
        std::max(range.begin, wanted.begin), std::min(range.end, wanted.end)};
    if (part.begin < part.end) {
      candidates.push_back(
          {.range = part,
           .file = pieces[i].file,
           .piece = static_cast<int>(i)});
    }
  }
  std::sort(
      candidates.begin(), candidates.end(),
      [](const Candidate& a, const Candidate& b) {
        return std::tie(a.range.begin, a.file, a.piece) <
            std::tie(b.range.begin, b.file, b.piece);
      });
  return candidates;
}

// Chooses among n equal candidates by the digit sum of `reader` in base n. The plain remainder
// would send ranks 0, n, 2n, ... to one file, and these want the same elements if n divides the
// shard axis. Ranks kn to kn + n - 1 differ only in the last digit. For n = 2^b the digit sum is
// the sum of 2^(i mod b) over the set bits i, so n ranks that differ in b neighbouring bits get
// each remainder once.
std::size_t spread_choice(int reader, std::size_t n) {
  std::size_t sum = 0;
  if (n > 1) {
    for (auto left = static_cast<std::size_t>(reader); left > 0; left /= n) {
      sum += left % n;
    }
  }
  return sum % n;
}

}  // namespace

// Taking the candidate that reaches farthest at each position is optimal: whatever follows in any
// other cover also covers what is left.
ReadPlan plan_reads(
    std::span<const SavedPiece> pieces, ElementRange wanted, int reader) {
  check_range(wanted, "the range wanted");
  SHERD_CHECK(
      reader >= 0, "[plan] expected a reader of at least 0, found ", reader);
  const std::vector<Candidate> candidates = candidates_of(pieces, wanted);
  ReadPlan plan;
  FurthestCandidates furthest{.end = wanted.begin, .pieces = {}};
  auto next = candidates.begin();
  for (std::int64_t at = wanted.begin; at < wanted.end; at = furthest.end) {
    for (; next != candidates.end() && next->range.begin <= at; ++next) {
      furthest.add(*next);
    }
    if (furthest.end > at) {
      const auto choice = spread_choice(reader, furthest.pieces.size());
      plan.reads.push_back(
          {.piece = furthest.pieces[choice], .range = {at, furthest.end}});
    } else {
      furthest.end = next != candidates.end() ? next->range.begin : wanted.end;
      plan.missing.push_back({at, furthest.end});
    }
  }
  return plan;
}

ElementRange share_of(ElementRange range, int replica, int replicas) {
  check_range(range, "the range to share");
  SHERD_CHECK(
      replicas >= 1, "[plan] expected at least 1 replica, found ", replicas);
  SHERD_CHECK(
      replica >= 0 && replica < replicas, "[plan] expected a replica of 0 to ",
      replicas - 1, ", found ", replica);
  const std::int64_t least = range.numel() / replicas;
  const std::int64_t longer = range.numel() % replicas;
  const std::int64_t begin =
      range.begin + replica * least + std::min<std::int64_t>(replica, longer);
  return {begin, begin + least + (replica < longer ? 1 : 0)};
}

}  // namespace sherd::plan
