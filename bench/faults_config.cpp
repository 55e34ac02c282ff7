// SPDX-License-Identifier: Apache-2.0
#include "bench/faults_bench.h"

#include "bench/statistics.h"
#include "refuse.h"

namespace sherd::bench {
namespace {

using Target = InjectedKill::Target;
using tools::expect_at_least;
using tools::expect_one_of;

constexpr double kCoordinatorGapMax_s = 2.0;
constexpr double kThroughputMin = 0.9;

double sum_of_lost(const FaultsResult& result) {
  double lost = result.discarded_steps + result.hashes.divergences;
  for (const auto& fault : result.faults) {
    lost += fault.survivors_lost;
  }
  return lost;
}

std::optional<bool> at_most(const std::vector<double>& values, double bar) {
  return values.empty() ? std::nullopt : std::optional(median(values) <= bar);
}

}  // namespace

void check(const FaultsConfig& config) {
  workload_named(config.work);
  expect_at_least("--batch", 0, config.batch);
  // At least one replica must survive.
  expect_at_least("--replicas", 2, config.shape.replicas);
  expect_at_least("--ranks", 1, config.shape.ranks);
  expect_at_least("--kills", 0, config.kills);
  expect_at_least("--interval-width", 0, config.limits.interval_width);
  expect_at_least("--rounds-max", 1, config.limits.rounds_max);
  expect_at_least("--minutes-max", 0, config.limits.minutes_max);
  expect_at_least("--block-steps", 1, config.block_steps);
  // A run that waits much longer than a usual step would be taken for one that hangs.
  constexpr int kBlockStepsMax = 6;
  if (config.block_steps > kBlockStepsMax) {
    tools::refuse(
        "--block-steps", "at most " + std::to_string(kBlockStepsMax),
        std::to_string(config.block_steps));
  }
  expect_one_of("--target", {"rank", "coordinator", "both"}, config.target);
  expect_one_of("--exchange", {"auto", "collective", "shm"}, config.exchange);
}

Workload workload_of(const FaultsConfig& config) {
  auto work = workload_named(config.work);
  if (config.batch > 0) {
    work.batch = config.batch;
  }
  return work;
}

std::vector<double> gaps_of(const FaultsResult& result, Target target) {
  std::vector<double> gaps;
  for (const auto& fault : result.faults) {
    if (fault.kill.target == target) {
      gaps.push_back(fault.gap_s);
    }
  }
  return gaps;
}

std::vector<double> known_of(
    const FaultsResult& result, std::optional<double> FaultMetrics::* member) {
  std::vector<double> known;
  for (const auto& fault : result.faults) {
    if (fault.*member) {
      known.push_back(*(fault.*member));
    }
  }
  return known;
}

FaultCriteria check_criteria(const FaultsResult& result) {
  FaultCriteria criteria;
  criteria.gap_s_max = 2 * result.step_s + 0.5;
  criteria.gap = at_most(gaps_of(result, Target::kRank), criteria.gap_s_max);
  criteria.coordinator_gap =
      at_most(gaps_of(result, Target::kCoordinator), kCoordinatorGapMax_s);
  if (const auto throughputs = known_of(result, &FaultMetrics::throughput);
      !throughputs.empty()) {
    criteria.throughput = median(throughputs) >= kThroughputMin;
  }
  criteria.nothing_lost = sum_of_lost(result) == 0;
  return criteria;
}

MedianEstimate cost_of(const CostResult& result) {
  return estimate_median(ratios(result.fault_tolerant_ms, result.plain_ms));
}

}  // namespace sherd::bench
