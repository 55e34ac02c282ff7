// SPDX-License-Identifier: Apache-2.0
#include "ft/run_summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace sherd::ft::test {
namespace {

std::int64_t fewest_in_a_minute(const std::map<std::int64_t, Instant>& held) {
  constexpr Duration kMinute = std::chrono::minutes(1);
  std::vector<Instant> times;
  for (const auto& [step, at] : held) {
    times.push_back(at);
  }
  std::sort(times.begin(), times.end());
  std::int64_t fewest = -1;
  for (const Instant begin : times) {
    if (begin + kMinute > times.back()) {
      break;
    }
    // Starts right after a commit, where a stall begins.
    const auto from = std::upper_bound(times.begin(), times.end(), begin);
    const auto to =
        std::upper_bound(times.begin(), times.end(), begin + kMinute);
    const std::int64_t count = to - from;
    fewest = fewest < 0 ? count : std::min(fewest, count);
  }
  return fewest;
}

void count_samples(const Outcome& outcome, RunSummary& summary) {
  std::vector<SampleRange> ranges;
  for (const auto* commit : outcome.chain()) {
    for (const auto& one : commit->participants) {
      ranges.insert(ranges.end(), one.samples.begin(), one.samples.end());
    }
  }
  std::sort(ranges.begin(), ranges.end());
  std::int64_t next = 0;
  for (const auto& range : ranges) {
    summary.samples += range.size();
    summary.samples_lost += std::max<std::int64_t>(range.begin - next, 0);
    summary.samples_repeated +=
        std::clamp<std::int64_t>(next - range.begin, 0, range.size());
    next = std::max(next, range.end);
  }
}

// How long each replica took for each of its steps that was committed with it.
std::vector<Duration> times_of_steps(const Outcome& outcome) {
  std::set<std::pair<Incarnation, StateId>> trained;
  for (const auto* commit : outcome.chain()) {
    for (const auto& one : commit->participants) {
      if (!one.samples.empty()) {
        trained.insert({one.incarnation, commit->commit.base});
      }
    }
  }
  std::vector<Duration> times;
  for (const auto& life : outcome.lives) {
    // Where it reports that it holds the base.
    const TraceEvent* base = nullptr;
    for (const auto& event : life.trace) {
      if (life.rank != 0 || event.kind != TraceEvent::Kind::kHolds ||
          (base != nullptr && event.state == base->state)) {
        continue;
      }
      if (base != nullptr &&
          trained.contains({life.incarnation, base->state})) {
        times.push_back(event.at - base->at);
      }
      base = &event;
    }
  }
  return times;
}

double effective_time(const Outcome& outcome, double all_seconds) {
  auto times = times_of_steps(outcome);
  if (times.empty()) {
    return 0;
  }
  std::sort(times.begin(), times.end());
  const Duration usual = times[times.size() / 2];
  double sum = 0;
  for (const Duration time : times) {
    sum += seconds(time > 2 * usual ? usual : time);
  }
  return sum / all_seconds;
}

}  // namespace

RunSummary summary_of(const Outcome& outcome, int replicas) {
  RunSummary summary;
  const auto held = outcome.first_held(outcome.all_replicas());
  if (held.empty()) {
    return summary;
  }
  summary.steps = held.rbegin()->first;
  summary.seconds = seconds(held.rbegin()->second - held.begin()->second);
  summary.commits_in_a_minute_min = fewest_in_a_minute(held);
  count_samples(outcome, summary);
  summary.effective = effective_time(outcome, summary.seconds * replicas);
  return summary;
}

}  // namespace sherd::ft::test
