// SPDX-License-Identifier: Apache-2.0
//
// What a simulation rests on, and what the control of a run costs beside it. Thread rule: pure
// functions.
#pragma once

#include <vector>
#include "sim/runs.h"
#include "sim/simulate.h"

namespace sherd::sim {

// Every number that the result depends on, with where it is from.
std::vector<Assumption> assumptions_of(const SimulationOptions& options);

// Fills `traffic` and `resources`, if the run had a coordinator.
void add_traffic(
    const SimulationOptions& options,
    const RunOutcome& run,
    SimulationResult& result);

}  // namespace sherd::sim
