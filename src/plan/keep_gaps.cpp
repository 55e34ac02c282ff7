// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <utility>
#include "base/check.h"
#include "plan/gaps.h"

namespace sherd::plan {
namespace {

// An exchange costs a walk over the gaps. With this limit the search takes less than 0.3 s for a
// step of 1000 visits, and far less once the lower bound is reached.
constexpr int kExchangesMax = 1000;

// Which gap to give up at a visit that has no room.
enum class DropRule { kEndsLast, kFewestBytes };

// A choice of bridged gaps, with the room they leave.
class KeptGaps {
 public:
  explicit KeptGaps(const GapProblem& problem)
      : problem_(&problem),
        kept_(problem.gaps.size(), false),
        room_(problem.room) {}

  bool kept(std::size_t gap) const { return kept_[gap]; }
  const std::vector<bool>& kept() const { return kept_; }
  std::int64_t kept_bytes() const { return kept_bytes_; }

  void set(std::size_t gap, bool kept) {
    const Gap& g = problem_->gaps[gap];
    const std::int64_t bytes = kept ? g.bytes : -g.bytes;
    for (int visit = g.begin; visit < g.end; ++visit) {
      room_[index_of(visit)] -= bytes;
    }
    kept_[gap] = kept;
    kept_bytes_ += bytes;
  }

  bool fits(std::size_t gap) const {
    const Gap& g = problem_->gaps[gap];
    for (int visit = g.begin; visit < g.end; ++visit) {
      if (room_[index_of(visit)] < g.bytes) {
        return false;
      }
    }
    return true;
  }

  // Gives up other gaps until all gaps over the visits of `gap`, which is kept, fit the room.
  // REQUIRES: `gap` fits by itself.
  void make_room_for(std::size_t gap, DropRule rule) {
    const Gap& g = problem_->gaps[gap];
    for (int visit = g.begin; visit < g.end; ++visit) {
      while (room_[index_of(visit)] < 0) {
        set(gap_to_drop_at(static_cast<int>(index_of(visit)), gap, rule),
            false);
      }
    }
  }

 private:
  // The index of a visit of this step or the next.
  std::size_t index_of(int visit) const {
    return static_cast<std::size_t>(
        visit < problem_->visits() ? visit : visit - problem_->visits());
  }

  // How many visits, from this one on, the gap still covers; 0 or less if it does not cover this
  // one.
  int left_at(const Gap& gap, int visit) const {
    return gap.begin <= visit ? gap.end - visit
                              : gap.end - problem_->visits() - visit;
  }

  // Ties go to the first gap.
  std::size_t gap_to_drop_at(int visit, std::size_t but, DropRule rule) const {
    std::optional<std::size_t> best;
    std::int64_t best_rank = 0;
    for (std::size_t gap = 0; gap < kept_.size(); ++gap) {
      const int left = left_at(problem_->gaps[gap], visit);
      if (!kept_[gap] || gap == but || left <= 0) {
        continue;
      }
      const std::int64_t rank =
          rule == DropRule::kEndsLast ? left : -problem_->gaps[gap].bytes;
      if (!best || rank > best_rank) {
        best = gap;
        best_rank = rank;
      }
    }
    SHERD_ASSERT(best.has_value(), "no gap to give up at visit ", visit);
    return *best;
  }

  const GapProblem* problem_;  // Outlives the choice.
  std::vector<bool> kept_;
  std::vector<std::int64_t> room_;  // By visit, minus what is kept.
  std::int64_t kept_bytes_ = 0;
};

// The gaps that can be kept at all, the largest first.
std::vector<std::size_t> candidates_of(const GapProblem& problem) {
  const KeptGaps none(problem);
  std::vector<std::size_t> gaps;
  for (std::size_t gap = 0; gap < problem.gaps.size(); ++gap) {
    if (none.fits(gap)) {
      gaps.push_back(gap);
    }
  }
  std::sort(gaps.begin(), gaps.end(), [&](std::size_t a, std::size_t b) {
    const std::int64_t more = problem.gaps[a].bytes - problem.gaps[b].bytes;
    return more != 0 ? more > 0 : a < b;
  });
  return gaps;
}

class LocalSearch {
 public:
  explicit LocalSearch(const GapProblem& problem)
      : candidates_(candidates_of(problem)), best_(problem) {
    const std::vector<bool> kept = keep_by_farthest_next_use(problem);
    std::int64_t bytes = 0;
    for (std::size_t gap = 0; gap < kept.size(); ++gap) {
      bytes += problem.gaps[gap].bytes;
      if (kept[gap]) {
        best_.set(gap, true);
      }
    }
    fill(best_);
    kept_bytes_max_ = bytes - missed_bytes_lower_bound(problem);
  }

  std::vector<bool> run() {
    bool better = true;
    while (better) {
      better = false;
      for (const std::size_t gap : candidates_) {
        if (best_.kept(gap)) {
          better |= try_without(gap);
        } else {
          better |= try_with(gap, DropRule::kEndsLast) ||
              try_with(gap, DropRule::kFewestBytes);
        }
        if (best_.kept_bytes() == kept_bytes_max_ ||
            exchanges_ >= kExchangesMax) {
          return best_.kept();
        }
      }
    }
    return best_.kept();
  }

 private:
  bool try_with(std::size_t gap, DropRule rule) {
    KeptGaps next = best_;
    next.set(gap, true);
    next.make_room_for(gap, rule);
    return accept_if_better(std::move(next));
  }

  bool try_without(std::size_t gap) {
    KeptGaps next = best_;
    next.set(gap, false);
    for (const std::size_t other : candidates_) {
      if (other != gap && !next.kept(other) && next.fits(other)) {
        next.set(other, true);
      }
    }
    return accept_if_better(std::move(next));
  }

  bool accept_if_better(KeptGaps next) {
    ++exchanges_;
    fill(next);
    if (next.kept_bytes() <= best_.kept_bytes()) {
      return false;
    }
    best_ = std::move(next);
    return true;
  }

  void fill(KeptGaps& choice) const {
    for (const std::size_t gap : candidates_) {
      if (!choice.kept(gap) && choice.fits(gap)) {
        choice.set(gap, true);
      }
    }
  }

  const std::vector<std::size_t> candidates_;
  KeptGaps best_;
  std::int64_t kept_bytes_max_ = 0;
  int exchanges_ = 0;
};

}  // namespace

std::vector<bool> keep_gaps(const GapProblem& problem) {
  return LocalSearch(problem).run();
}

}  // namespace sherd::plan
