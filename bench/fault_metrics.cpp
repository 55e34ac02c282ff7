// SPDX-License-Identifier: Apache-2.0
#include "bench/fault_metrics.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include "bench/statistics.h"

namespace sherd::bench {
namespace {

// Made as a member, together with the others.
bool is_joint(const StepEvent& line) {
  return line.kind == StepEvent::Kind::kComputed ||
      line.kind == StepEvent::Kind::kFollowed;
}

bool is_made(const StepEvent& line) {
  return is_joint(line) || line.kind == StepEvent::Kind::kReplayed;
}

double begin_of(const StepLog& log) {
  return log.lines.empty() ? std::numeric_limits<double>::infinity()
                           : log.lines.front().time_s;
}

std::optional<double> first_joint_s(const StepLog& log) {
  const auto found = std::find_if(log.lines.begin(), log.lines.end(), is_joint);
  return found == log.lines.end() ? std::nullopt : std::optional(found->time_s);
}

struct Gap {
  double begin_s = 0.0;
  double end_s = 0.0;

  double length() const { return end_s - begin_s; }
};

std::vector<Gap> gaps_of(const StepLog& log) {
  std::vector<Gap> gaps;
  std::optional<double> last;
  for (const auto& line : log.lines) {
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

bool is_hit(const StepLog& log, const InjectedKill& kill) {
  return kill.target == InjectedKill::Target::kRank &&
      log.replica == kill.replica;
}

// For each replica and rank, the log of its latest incarnation.
std::map<std::pair<int, int>, const StepLog*> latest_logs(
    const std::vector<StepLog>& logs) {
  std::map<std::pair<int, int>, const StepLog*> last;
  for (const auto& log : logs) {
    auto& known = last[{log.replica, log.rank}];
    if (known == nullptr || begin_of(*known) < begin_of(log)) {
      known = &log;
    }
  }
  return last;
}

bool has_computed(const StepLog& log, double since_s, int steps) {
  return std::count_if(
             log.lines.begin(), log.lines.end(), [&](const auto& line) {
               return line.kind == StepEvent::Kind::kComputed &&
                   line.time_s > since_s;
             }) >= steps;
}

// When the logs of the replica after the kill began, for the last of its ranks.
std::optional<double> restart_time_s(
    const std::vector<StepLog>& logs, const InjectedKill& kill) {
  std::optional<double> latest;
  for (const auto& [place, log] : latest_logs(logs)) {
    if (is_hit(*log, kill) && begin_of(*log) > kill.time_s) {
      latest = std::max(latest.value_or(0.0), begin_of(*log));
    }
  }
  return latest;
}

// The throughput of one survivor while the killed replica was coming back.
std::optional<double> throughput_of(
    const std::vector<Gap>& gaps,
    const Gap& longest,
    const Gap& window,
    double usual_s) {
  int steps = 0;
  double taken_s = 0.0;
  for (const auto& gap : gaps) {
    // The step with which it is back ends at about the same time on all ranks.
    const bool within =
        gap.end_s > window.begin_s && gap.end_s <= window.end_s + usual_s / 2;
    if (within && gap.begin_s != longest.begin_s) {
      ++steps;
      taken_s += gap.length();
    }
  }
  return steps == 0 ? std::nullopt : std::optional(steps * usual_s / taken_s);
}

// The gaps that end after the kill and begin before `until_s`.
std::vector<Gap> gaps_around(
    const StepLog& log, const InjectedKill& kill, double until_s) {
  auto gaps = gaps_of(log);
  std::erase_if(gaps, [&](const Gap& gap) {
    return gap.end_s <= kill.time_s || gap.begin_s >= until_s;
  });
  return gaps;
}

bool was_killed_before(
    const StepLog& log, const std::vector<InjectedKill>& kills, double time_s) {
  return std::any_of(kills.begin(), kills.end(), [&](const InjectedKill& kill) {
    return is_hit(log, kill) && begin_of(log) < kill.time_s &&
        kill.time_s < time_s;
  });
}

}  // namespace

std::optional<double> usual_step_s(
    const std::vector<StepLog>& logs, double from_s, double until_s) {
  std::vector<double> lengths;
  for (const auto& log : logs) {
    for (const auto& gap : gaps_of(log)) {
      if (gap.begin_s >= from_s && gap.end_s <= until_s) {
        lengths.push_back(gap.length());
      }
    }
  }
  return lengths.empty() ? std::nullopt : std::optional(median(lengths));
}

bool have_computed(
    const std::vector<StepLog>& logs,
    const JobShape& shape,
    double since_s,
    int steps) {
  const auto last = latest_logs(logs);
  return last.size() ==
      static_cast<std::size_t>(shape.replicas * shape.ranks) &&
      std::all_of(last.begin(), last.end(), [&](const auto& one) {
           return has_computed(*one.second, since_s, steps);
         });
}

std::int64_t step_of_all(
    const std::vector<StepLog>& logs, const JobShape& shape) {
  const auto last = latest_logs(logs);
  if (last.size() != static_cast<std::size_t>(shape.replicas * shape.ranks)) {
    return 0;
  }
  std::int64_t step = std::numeric_limits<std::int64_t>::max();
  for (const auto& [place, log] : last) {
    const auto newest =
        std::find_if(log->lines.rbegin(), log->lines.rend(), is_made);
    step = std::min(step, newest == log->lines.rend() ? 0 : newest->step);
  }
  return step;
}

std::vector<double> step_times_ms(
    const std::vector<StepLog>& logs, std::int64_t first, std::int64_t last) {
  std::map<std::int64_t, double> made_s;  // By step, on the last rank.
  for (const auto& log : logs) {
    for (const auto& line : log.lines) {
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
    const std::vector<StepLog>& logs, const InjectedKill& kill, int ranks) {
  int back = 0;
  double latest = 0.0;
  for (const auto& [place, log] : latest_logs(logs)) {
    const auto joint = first_joint_s(*log);
    if (is_hit(*log, kill) && begin_of(*log) > kill.time_s && joint) {
      ++back;
      latest = std::max(latest, *joint);
    }
  }
  return back == ranks ? std::optional(latest) : std::nullopt;
}

FaultMetrics metrics_of(
    const std::vector<StepLog>& logs,
    const InjectedKill& kill,
    const JobShape& shape,
    double until_s) {
  FaultMetrics metrics{.kill = kill};
  const auto restart = restart_time_s(logs, kill);
  const auto back = return_time_s(logs, kill, shape.ranks);
  if (restart) {
    metrics.restart_s = *restart - kill.time_s;
  }
  if (back) {
    metrics.return_s = *back - kill.time_s;
  }
  std::vector<double> throughputs;
  std::set<int> lost;
  for (const auto& log : logs) {
    if (is_hit(log, kill)) {
      continue;
    }
    if (begin_of(log) > kill.time_s && begin_of(log) < until_s) {
      lost.insert(log.replica);
    }
    const auto gaps = gaps_around(log, kill, until_s);
    if (gaps.empty()) {
      continue;
    }
    const auto longest = *std::max_element(
        gaps.begin(), gaps.end(),
        [](const Gap& a, const Gap& b) { return a.length() < b.length(); });
    metrics.gap_s = std::max(metrics.gap_s, longest.length());
    // Ranks end a step at nearly the same time, so this counts from the first of them.
    metrics.into_step_s =
        std::max(metrics.into_step_s, kill.time_s - gaps.front().begin_s);
    const auto throughput = restart && back
        ? throughput_of(gaps, longest, {*restart, *back}, kill.usual_s)
        : std::nullopt;
    if (throughput) {
      throughputs.push_back(*throughput);
    }
  }
  metrics.survivors_lost = static_cast<int>(lost.size());
  if (!throughputs.empty()) {
    metrics.throughput = median(throughputs);
  }
  return metrics;
}

int discarded_steps(
    const std::vector<StepLog>& logs,
    const std::vector<InjectedKill>& kills,
    double until_s) {
  // Pairs of replica and step.
  std::set<std::pair<int, std::int64_t>> discarded;
  for (const auto& log : logs) {
    const auto joint = first_joint_s(log);
    for (const auto& line : log.lines) {
      if (line.kind == StepEvent::Kind::kDropped && joint &&
          line.time_s > *joint && line.time_s < until_s &&
          !was_killed_before(log, kills, line.time_s)) {
        discarded.insert({log.replica, line.step});
      }
    }
  }
  return static_cast<int>(discarded.size());
}

HashComparison compare_hashes(const std::vector<StepLog>& logs) {
  struct Seen {
    int count = 0;
    std::set<std::uint64_t> hashes;
  };
  // Keyed by rank and step.
  std::map<std::pair<int, std::int64_t>, Seen> states;
  for (const auto& log : logs) {
    for (const auto& line : log.lines) {
      if (line.hash) {
        auto& seen = states[{log.rank, line.step}];
        ++seen.count;
        seen.hashes.insert(*line.hash);
      }
    }
  }
  HashComparison comparison;
  for (const auto& [state, seen] : states) {
    comparison.compared += seen.count > 1 ? 1 : 0;
    comparison.divergences += seen.hashes.size() > 1 ? 1 : 0;
  }
  return comparison;
}

}  // namespace sherd::bench
