// SPDX-License-Identifier: Apache-2.0
//
// The assumptions of a simulation, and the cost of controlling the run. Thread rule: pure
// functions.
#pragma once

#include <vector>
#include "sim/runs.h"
#include "sim/simulate.h"

namespace sherd::sim {

// Every number on which the result depends, with its source.
std::vector<Assumption> assumptions_of(const SimulationOptions& options);

// Fills `traffic` and `resources`, if the run had a coordinator.
void add_traffic(
    const SimulationOptions& options,
    const RunOutcome& run,
    SimulationResult& result);

}  // namespace sherd::sim
