// SPDX-License-Identifier: Apache-2.0
//
// What `sherd simulate` prints for people. Pure functions. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include "simulate/simulation_json.h"

namespace sherd::tools {

// A line for each policy, what control costs, and what all of it rests on. REQUIRES: there is one.
std::string simulation_table(const std::vector<SimulatedPolicy>& all);

}  // namespace sherd::tools
