// SPDX-License-Identifier: Apache-2.0
//
// One simulated run under each policy, its assumptions, and the cost of controlling it. Thread
// rule: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include "base/clock.h"
#include "sim/failures.h"
#include "sim/simulate.h"
#include "sim/world.h"

namespace sherd::sim {

struct RunOutcome {
  double elapsed_s = 0;
  // Steps that were made and not undone, in the time that they would take without faults: each
  // counted in full, and each as the share of the replicas that made it.
  double steps_s = 0;
  double work_s = 0;
  std::int64_t failures = 0;
  std::int64_t commits = 0;
  std::int64_t discarded = 0;
  std::int64_t epochs = 0;
  double too_few_s = 0;
  // Only under kSherd.
  double replica_s = 0;       // Running replicas, all together.
  std::int64_t given_up = 0;  // Replicas that have used up their restarts.
  std::optional<Traffic::Totals> traffic{};
};

// How long a time is simulated.
Duration length_of(const SimulationOptions& options);
// The times of a world of these options.
WorldTimes times_of(const SimulationOptions& options);

RunOutcome run_restart(const SimulationOptions& options, std::uint64_t seed);
RunOutcome run_torchft(const SimulationOptions& options, std::uint64_t seed);
RunOutcome run_sherd(const SimulationOptions& options, std::uint64_t seed);

// How long the survivors of a failure stand still with torchft's default settings.
Duration torchft_stall(FailureKind kind);

// Every number on which the result depends, with its source.
std::vector<SimulationResult::Assumption> assumptions_of(
    const SimulationOptions& options);

// Fills `traffic` and `resources`, if the run had a coordinator.
void add_traffic(
    const SimulationOptions& options,
    const RunOutcome& run,
    SimulationResult& result);

}  // namespace sherd::sim
