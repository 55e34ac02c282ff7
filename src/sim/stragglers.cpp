// SPDX-License-Identifier: Apache-2.0
#include "sim/stragglers.h"

#include <algorithm>

#include "sim/failures.h"
#include "sim/random.h"
#include "sim/runs.h"

namespace sherd::sim {
namespace {

// All are slow for equally long, so the one that began first also ends first.
auto first_that_ends_after(const std::vector<Straggler>& all, Instant at) {
  return std::partition_point(
      all.begin(), all.end(),
      [at](const Straggler& one) { return one.until <= at; });
}

}  // namespace

std::vector<Straggler> stragglers_of(
    const SimulationOptions& options, std::uint64_t seed) {
  std::vector<Straggler> all;
  if (options.stragglers_per_1000_host_days <= 0) {
    return all;
  }
  const bool even = options.arrivals == Arrivals::kEven;
  const auto replicas = static_cast<std::uint64_t>(options.replicas);
  const double mean_s = mean_between_stragglers_s(options);
  Random random(seed, "stragglers");
  for (double at_s = even ? 0 : random.exponential(mean_s);
       seconds_of(at_s) < length_of(options);
       at_s += even ? mean_s : random.exponential(mean_s)) {
    const auto replica = even ? all.size() % replicas : random.below(replicas);
    const Instant from = seconds_of(at_s);
    all.push_back(
        {from, from + minutes(options.straggler_min),
         static_cast<int>(replica)});
  }
  return all;
}

std::vector<int> slow_at(const std::vector<Straggler>& all, Instant at) {
  std::vector<int> replicas;
  for (auto one = first_that_ends_after(all, at);
       one != all.end() && one->from <= at; ++one) {
    replicas.push_back(one->replica);
  }
  return replicas;
}

Duration slow_time(
    const std::vector<Straggler>& all, Instant from, Instant until) {
  Duration slow{0};
  for (auto one = first_that_ends_after(all, from);
       one != all.end() && one->from < until; ++one) {
    const auto begin = std::max(from, one->from);
    const auto end = std::min(until, one->until);
    if (end > begin) {
      slow += end - begin;
      from = end;
    }
  }
  return slow;
}

}  // namespace sherd::sim
