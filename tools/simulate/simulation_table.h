// SPDX-License-Identifier: Apache-2.0
//
// What `sherd simulate` prints for people. Pure functions. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include "simulate/simulation_json.h"

namespace sherd::tools {

// A line for each policy, the cost of control, and the assumptions. REQUIRES: there is at least one
// policy.
std::string simulation_table(const std::vector<sim::SimulationResult>& all);

}  // namespace sherd::tools
