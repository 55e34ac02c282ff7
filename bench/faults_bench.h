// SPDX-License-Identifier: Apache-2.0
//
// The measurements behind `sherd bench faults`: the cost of kills in a fault-tolerant run, and its
// cost without any, compared with plain hybrid sharding of the same mesh. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "bench/contender_job.h"
#include "bench/fault_metrics.h"
#include "bench/statistics.h"
#include "bench/step_bench.h"
#include "bench/workload.h"

namespace sherd::bench {

// The user's options, as in the flags.
struct FaultsConfig {
  std::string work = "small";
  std::int64_t batch = 0;  // Rows per rank; 0 means those of the workload.
  JobShape shape{.replicas = 3, .ranks = 2};
  int kills = 20;
  std::string target = "rank";
  std::uint64_t seed = 1;  // Determines who is killed, and when within a step.
  std::string exchange = "auto";  // Within a replica, and for plain sharding.
  std::string folder{};
  bool json_only = false;  // The report has no table.
  // Nobody is killed: what fault tolerance costs. The other two apply only then.
  bool cost = false;
  StopLimits limits{
      .interval_width = 0.01, .rounds_max = 40, .minutes_max = 20.0};
  int block_steps = 5;
};

// Throws Error that names flag, expected and found.
void check(const FaultsConfig& config);

// The named workload, with the requested batch.
Workload workload_of(const FaultsConfig& config);

struct FaultsResult {
  std::vector<FaultMetrics> faults;
  double step_s = 0.0;  // Without faults.
  // The simulator's prediction for each kill of a rank.
  std::vector<double> simulated_gaps_s{};
  int discarded_steps = 0;
  HashComparison hashes{};
  std::int64_t steps = 0;
  double seconds = 0.0;
};

// Which promises of docs/design/benchmarks.md the result keeps; nothing if that was not measured.
struct FaultCriteria {
  // All three are about medians.
  double gap_s_max = 0.0;  // 2 steps and 0.5 s.
  std::optional<bool> gap;
  std::optional<bool> coordinator_gap;  // At most 2 s.
  std::optional<bool> throughput;       // At least 0.9.
  bool nothing_lost = true;  // No step, no other replica, and no divergence.
  bool all() const {
    return gap.value_or(true) && coordinator_gap.value_or(true) &&
        throughput.value_or(true) && nothing_lost;
  }
};
FaultCriteria check_criteria(const FaultsResult& result);

// Gaps of kills of that target, in order.
std::vector<double> gaps_of(
    const FaultsResult& result, InjectedKill::Target target);
// The returns or throughputs of all kills, where they are known.
std::vector<double> known_of(
    const FaultsResult& result, std::optional<double> FaultMetrics::* member);

// Throws Error if the run ends or does not recover; and Interrupted. Nothing is left running then.
FaultsResult measure_faults(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress);

struct CostResult {
  // The medians of the rounds.
  std::vector<double> plain_ms;
  std::vector<double> fault_tolerant_ms;
  int block_steps = 0;
  double seconds = 0.0;
  std::string why_stopped;
};

// The ratio of the two runs' times, from pairs of blocks.
MedianEstimate cost_of(const CostResult& result);

// Throws as measure_faults does. Both runs are alive at once; one waits while the other runs its
// block.
CostResult measure_cost(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const SignalFd& signals,
    const ProgressCallback& progress);

}  // namespace sherd::bench
