// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include "plan/arithmetic.h"
#include "plan/gaps.h"

namespace sherd::plan {
namespace {

// If gaps cross the step boundary, the bound is the mean over this many steps, whose outer ends
// count nothing.
constexpr int kBoundSteps = 32;

// The gaps bridged at one visit, ordered by their ends. If there is no room, the one that ends last
// is given up, because those that end sooner free their bytes sooner.
class OpenGaps {
 public:
  struct Open {
    int end = 0;
    std::int64_t bytes = 0;
    std::size_t gap = 0;

    bool operator<(const Open& other) const {
      return std::tie(end, bytes, gap) <
          std::tie(other.end, other.bytes, other.gap);
    }
  };

  std::int64_t bytes() const { return bytes_; }

  void add(const Open& open) {
    gaps_.insert(open);
    bytes_ += open.bytes;
  }

  Open remove_last() {
    const Open last = *gaps_.rbegin();
    gaps_.erase(std::prev(gaps_.end()));
    bytes_ -= last.bytes;
    return last;
  }

  void remove_ended(int now) {
    while (!gaps_.empty() && gaps_.begin()->end <= now) {
      bytes_ -= gaps_.begin()->bytes;
      gaps_.erase(gaps_.begin());
    }
  }

 private:
  std::set<Open> gaps_;
  std::int64_t bytes_ = 0;
};

bool crosses_step_boundary(const GapProblem& problem, const Gap& gap) {
  return gap.end > problem.visits();
}

// Adds the tails of the gaps that began in the step before.
void add_gaps_over_step_boundary(const GapProblem& problem, OpenGaps& open) {
  for (std::size_t g = 0; g < problem.gaps.size(); ++g) {
    const Gap& gap = problem.gaps[g];
    if (crosses_step_boundary(problem, gap)) {
      open.add({gap.end - problem.visits(), gap.bytes, g});
    }
  }
}

}  // namespace

// A gap over the step boundary is bridged at both ends of the step or not at all: if its tail,
// which comes first, was given up, its head is not begun.
std::vector<bool> keep_by_farthest_next_use(const GapProblem& problem) {
  std::vector<bool> kept(problem.gaps.size(), true);
  OpenGaps open;
  add_gaps_over_step_boundary(problem, open);
  std::size_t next = 0;
  for (int visit = 0; visit < problem.visits(); ++visit) {
    open.remove_ended(visit);
    for (; next < kept.size() && problem.gaps[next].begin == visit; ++next) {
      if (kept[next]) {
        open.add({problem.gaps[next].end, problem.gaps[next].bytes, next});
      }
    }
    while (open.bytes() > problem.room[static_cast<std::size_t>(visit)]) {
      kept[open.remove_last().gap] = false;
    }
  }
  return kept;
}

// Walks over several steps in a row, where whatever is whole before the first and after the last
// costs nothing. A schedule that is repeated that often misses at least as much as this walk, so
// the mean per step, rounded up, is a bound for one step.
std::int64_t missed_bytes_lower_bound(const GapProblem& problem) {
  OpenGaps open;
  add_gaps_over_step_boundary(problem, open);
  const int steps = open.bytes() > 0 ? kBoundSteps : 1;
  std::int64_t missed = 0;
  for (int step = 0; step < steps; ++step) {
    const int start = step * problem.visits();
    std::size_t next = 0;
    const auto begin_gaps = [&](int visit) {
      for (; next < problem.gaps.size() && problem.gaps[next].begin == visit;
           ++next) {
        const Gap& gap = problem.gaps[next];
        if (step + 1 < steps || !crosses_step_boundary(problem, gap)) {
          open.add({start + gap.end, gap.bytes, next});
        }
      }
    };
    for (int visit = 0; visit < problem.visits(); ++visit) {
      open.remove_ended(start + visit);
      begin_gaps(visit);
      const std::int64_t room = problem.room[static_cast<std::size_t>(visit)];
      while (open.bytes() > room) {
        OpenGaps::Open last = open.remove_last();
        const std::int64_t gone =
            std::min(last.bytes, open.bytes() + last.bytes - room);
        missed += gone;
        last.bytes -= gone;
        if (last.bytes > 0) {
          open.add(last);
        }
      }
    }
    begin_gaps(problem.visits());
  }
  return divide_up(missed, steps);
}

}  // namespace sherd::plan
