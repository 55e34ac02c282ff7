// SPDX-License-Identifier: Apache-2.0
//
// The measurements behind `sherd bench faults`: what kills cost a fault-tolerant
// run, and what it costs without any, beside plain hybrid sharding of the same
// mesh. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "bench/contender_job.h"
#include "bench/fault_metrics.h"
#include "bench/fault_tolerant_job.h"
#include "bench/step_bench.h"
#include "bench/workload.h"

namespace sherd::bench {

// What the user asked for, as flags have it.
struct FaultsConfig {
  std::string work = "small";
  std::int64_t batch = 0;  // Rows a rank; 0: the work's.
  int replicas = 3;
  int ranks = 2;  // In each replica.
  int kills = 20;
  // rank: some rank of some replica, drawn anew each time; coordinator; both: in
  // turn, as many kills of each.
  std::string target = "rank";
  std::uint64_t seed = 1;  // Draws who is killed, and when within a step.
  std::string exchange = "auto";  // Within a replica, and in plain sharding.
  // Where the ranks' files are kept; empty: nowhere.
  std::string folder{};
  // These four only for the cost without faults.
  double interval_width = 0.01;
  int rounds_max = 40;
  double minutes_max = 20.0;
  int block_steps = 5;
};

// Throws Error that names flag, expected and found.
void check(const FaultsConfig& config);

// The workload that is named, with the batch that was asked for.
Workload workload_of(const FaultsConfig& config);
// A job that neither hashes its state nor waits at a gate.
FaultTolerantJobSpec replica_setup(
    const FaultsConfig& config, const StepPrograms& programs);

struct FaultsResult {
  std::vector<FaultMetrics> faults;
  double step_s = 0.0;  // Without faults.
  // What the simulator says of each kill of a rank.
  std::vector<double> simulated_gaps_s{};
  int discarded_steps = 0;
  HashComparison hashes{};
  std::int64_t steps = 0;
  double seconds = 0.0;
};

// Which promises of docs/design/benchmarks.md the result keeps; nothing where nothing was measured.
struct FaultCriteria {
  // All three are about medians.
  double gap_s_max = 0.0;  // 2 steps and 0.5 s.
  std::optional<bool> gap;
  std::optional<bool> coordinator_gap;  // At most 2 s.
  std::optional<bool> throughput;       // At least 0.9.
  bool nothing_lost = true;  // No step, no divergence, no other replica.
  bool all() const {
    return gap.value_or(true) && coordinator_gap.value_or(true) &&
        throughput.value_or(true) && nothing_lost;
  }
};
FaultCriteria check_criteria(const FaultsResult& result);

// Gaps of kills of that target, in order.
std::vector<double> gaps_of(const FaultsResult& result, KillTarget target);
// The same for returns and throughputs, where they are known.
std::vector<double> returns_of(const FaultsResult& result);
std::vector<double> throughputs_of(const FaultsResult& result);

// Throws Error when the run ends or does not recover, and Interrupted; nothing is
// left running then.
FaultsResult measure_faults(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const StopSignalFd& signals,
    const ProgressCallback& progress);

struct CostResult {
  // Medians of the rounds.
  std::vector<double> plain_ms;
  std::vector<double> fault_tolerant_ms;
  int block_steps = 0;
  double seconds = 0.0;
  std::string why_stopped;
};

// The ratio of the two runs' times, from pairs of blocks.
MedianEstimate cost_of(const CostResult& result);

// As measure_faults. Both runs are alive at once; one waits while the other takes
// its block.
CostResult measure_cost(
    const FaultsConfig& config,
    const StepPrograms& programs,
    const StopSignalFd& signals,
    const ProgressCallback& progress);

}  // namespace sherd::bench
