// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_figures.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include "bench/statistics.h"

namespace sherd::tools::bench {
namespace {

bool is_made(const StepLine& line) {
  return line.kind == StepKind::kComputed || line.kind == StepKind::kFollowed ||
      line.kind == StepKind::kReplayed;
}

// Made as a member, with the others.
bool is_joint(const StepLine& line) {
  return line.kind == StepKind::kComputed || line.kind == StepKind::kFollowed;
}

double begin_of(const Life& life) {
  return life.lines.empty() ? std::numeric_limits<double>::infinity()
                            : life.lines.front().time_s;
}

std::optional<double> first_joint_s(const Life& life) {
  const auto found =
      std::find_if(life.lines.begin(), life.lines.end(), is_joint);
  return found == life.lines.end() ? std::nullopt
                                   : std::optional(found->time_s);
}

struct Gap {
  double begin_s = 0.0;
  double end_s = 0.0;

  double length() const { return end_s - begin_s; }
};

std::vector<Gap> gaps_of(const Life& life) {
  std::vector<Gap> gaps;
  std::optional<double> last;
  for (const auto& line : life.lines) {
    if (!is_made(line)) {
      continue;
    }
    if (last) {
      gaps.push_back({*last, line.time_s});
    }
    last = line.time_s;
  }
  return gaps;
}

bool is_hit(const Life& life, const Kill& kill) {
  return kill.target == KillTarget::kRank && life.name.replica == kill.replica;
}

// By replica and rank the life that began last.
std::map<std::pair<int, int>, const Life*> last_lives(
    const std::vector<Life>& lives) {
  std::map<std::pair<int, int>, const Life*> last;
  for (const auto& life : lives) {
    auto& known = last[{life.name.replica, life.name.rank}];
    if (known == nullptr || begin_of(*known) < begin_of(life)) {
      known = &life;
    }
  }
  return last;
}

bool has_computed(const Life& life, double since_s, int steps) {
  return std::count_if(
             life.lines.begin(), life.lines.end(), [&](const auto& line) {
               return line.kind == StepKind::kComputed && line.time_s > since_s;
             }) >= steps;
}

// When the lives of the replica after the kill began, the last of its ranks.
std::optional<double> restart_time_s(
    const std::vector<Life>& lives, const Kill& kill) {
  std::optional<double> latest;
  for (const auto& [place, life] : last_lives(lives)) {
    if (is_hit(*life, kill) && begin_of(*life) > kill.time_s) {
      latest = std::max(latest.value_or(0.0), begin_of(*life));
    }
  }
  return latest;
}

// Of one survivor, while the other came back.
std::optional<double> throughput_of(
    const std::vector<Gap>& gaps,
    const Gap& longest,
    const Gap& window,
    double usual_s) {
  int steps = 0;
  double taken_s = 0.0;
  for (const auto& gap : gaps) {
    // The step with which it is back ends at about the same time everywhere.
    const bool within =
        gap.end_s > window.begin_s && gap.end_s <= window.end_s + usual_s / 2;
    if (within && gap.begin_s != longest.begin_s) {
      ++steps;
      taken_s += gap.length();
    }
  }
  return steps == 0 ? std::nullopt : std::optional(steps * usual_s / taken_s);
}

// Those that end after the kill and begin before `until_s`.
std::vector<Gap> gaps_around(
    const Life& life, const Kill& kill, double until_s) {
  auto gaps = gaps_of(life);
  std::erase_if(gaps, [&](const Gap& gap) {
    return gap.end_s <= kill.time_s || gap.begin_s >= until_s;
  });
  return gaps;
}

bool was_killed_before(
    const Life& life, const std::vector<Kill>& kills, double time_s) {
  return std::any_of(kills.begin(), kills.end(), [&](const Kill& kill) {
    return is_hit(life, kill) && begin_of(life) < kill.time_s &&
        kill.time_s < time_s;
  });
}

}  // namespace

std::optional<double> usual_step_s(
    const std::vector<Life>& lives, double from_s, double until_s) {
  std::vector<double> lengths;
  for (const auto& life : lives) {
    for (const auto& gap : gaps_of(life)) {
      if (gap.begin_s >= from_s && gap.end_s <= until_s) {
        lengths.push_back(gap.length());
      }
    }
  }
  return lengths.empty() ? std::nullopt : std::optional(median(lengths));
}

bool have_computed(
    const std::vector<Life>& lives,
    const JobShape& shape,
    double since_s,
    int steps) {
  const auto last = last_lives(lives);
  return last.size() ==
      static_cast<std::size_t>(shape.replicas * shape.ranks) &&
      std::all_of(last.begin(), last.end(), [&](const auto& one) {
           return has_computed(*one.second, since_s, steps);
         });
}

std::int64_t step_of_all(
    const std::vector<Life>& lives, const JobShape& shape) {
  const auto last = last_lives(lives);
  if (last.size() != static_cast<std::size_t>(shape.replicas * shape.ranks)) {
    return 0;
  }
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  for (const auto& [place, life] : last) {
    const auto newest =
        std::find_if(life->lines.rbegin(), life->lines.rend(), is_made);
    step = std::min(step, newest == life->lines.rend() ? 0 : newest->step);
  }
  return step;
}

std::vector<double> step_times_ms(
    const std::vector<Life>& lives, std::int64_t first, std::int64_t last) {
  std::map<std::int64_t, double> made_s;  // By step, of the last rank.
  for (const auto& life : lives) {
    for (const auto& line : life.lines) {
      if (is_made(line) && line.step >= first && line.step <= last) {
        auto& known = made_s[line.step];
        known = std::max(known, line.time_s);
      }
    }
  }
  std::vector<double> times_ms;
  for (auto step = first + 1; step <= last; ++step) {
    const auto before = made_s.find(step - 1);
    const auto after = made_s.find(step);
    if (before != made_s.end() && after != made_s.end()) {
      times_ms.push_back(1e3 * (after->second - before->second));
    }
  }
  return times_ms;
}

std::optional<double> return_time_s(
    const std::vector<Life>& lives, const Kill& kill, int ranks) {
  int back = 0;
  double latest = 0.0;
  for (const auto& [place, life] : last_lives(lives)) {
    const auto joint = first_joint_s(*life);
    if (is_hit(*life, kill) && begin_of(*life) > kill.time_s && joint) {
      ++back;
      latest = std::max(latest, *joint);
    }
  }
  return back == ranks ? std::optional(latest) : std::nullopt;
}

FaultFigures figures_of(
    const std::vector<Life>& lives,
    const Kill& kill,
    const JobShape& shape,
    double until_s) {
  FaultFigures figures{.kill = kill};
  const auto restart = restart_time_s(lives, kill);
  const auto back = return_time_s(lives, kill, shape.ranks);
  if (restart) {
    figures.restart_s = *restart - kill.time_s;
  }
  if (back) {
    figures.return_s = *back - kill.time_s;
  }
  std::vector<double> throughputs;
  std::set<int> lost;
  for (const auto& life : lives) {
    if (is_hit(life, kill)) {
      continue;
    }
    if (begin_of(life) > kill.time_s && begin_of(life) < until_s) {
      lost.insert(life.name.replica);
    }
    const auto gaps = gaps_around(life, kill, until_s);
    if (gaps.empty()) {
      continue;
    }
    const auto longest = *std::max_element(
        gaps.begin(), gaps.end(),
        [](const Gap& a, const Gap& b) { return a.length() < b.length(); });
    figures.gap_s = std::max(figures.gap_s, longest.length());
    const auto throughput = restart && back
        ? throughput_of(gaps, longest, {*restart, *back}, kill.usual_s)
        : std::nullopt;
    if (throughput) {
      throughputs.push_back(*throughput);
    }
  }
  figures.survivors_lost = static_cast<int>(lost.size());
  if (!throughputs.empty()) {
    figures.throughput = median(throughputs);
  }
  return figures;
}

int discarded_steps(
    const std::vector<Life>& lives,
    const std::vector<Kill>& kills,
    double until_s) {
  std::set<std::pair<int, std::int64_t>> discarded;  // By replica, step.
  for (const auto& life : lives) {
    const auto joint = first_joint_s(life);
    for (const auto& line : life.lines) {
      if (line.kind == StepKind::kDropped && joint && line.time_s > *joint &&
          line.time_s < until_s &&
          !was_killed_before(life, kills, line.time_s)) {
        discarded.insert({life.name.replica, line.step});
      }
    }
  }
  return static_cast<int>(discarded.size());
}

Comparison compare_hashes(const std::vector<Life>& lives) {
  struct Seen {
    int count = 0;
    std::set<std::uint64_t> hashes;
  };
  std::map<std::pair<int, std::int64_t>, Seen> states;  // By rank, step.
  for (const auto& life : lives) {
    for (const auto& line : life.lines) {
      if (line.hash) {
        auto& seen = states[{life.name.rank, line.step}];
        ++seen.count;
        seen.hashes.insert(*line.hash);
      }
    }
  }
  Comparison comparison;
  for (const auto& [state, seen] : states) {
    comparison.compared += seen.count > 1 ? 1 : 0;
    comparison.divergences += seen.hashes.size() > 1 ? 1 : 0;
  }
  return comparison;
}

}  // namespace sherd::tools::bench
