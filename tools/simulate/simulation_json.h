// SPDX-License-Identifier: Apache-2.0
//
// What `sherd simulate` prints for programs. Pure functions. Thread rule: any thread.
#pragma once

#include <array>
#include <string>
#include <vector>
#include "sim/simulate.h"

namespace sherd::tools {

inline constexpr std::array<sim::FailurePolicy, 3> kPolicies = {
    sim::FailurePolicy::kSherd, sim::FailurePolicy::kTorchft,
    sim::FailurePolicy::kRestart};

const char* name_of(sim::FailurePolicy policy);

// One JSON object in one line, without a newline: the first policy's values and, if there are
// several policies, all of them in "policies". REQUIRES: there is at least one.
std::string simulation_json(const std::vector<sim::SimulationResult>& all);

}  // namespace sherd::tools
