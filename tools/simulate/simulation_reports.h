// SPDX-License-Identifier: Apache-2.0
//
// What `sherd simulate` prints for programs and for people, and its page. Pure functions, of which
// that of the page uses several threads. Thread rule: any thread.
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

// A line for each policy, the cost of control, and the assumptions. REQUIRES: there is at least one
// policy.
std::string simulation_table(const std::vector<sim::SimulationResult>& all);

// The page that --html writes: effective training time against the size of the cluster, the time
// between failures, the stall and the number of spare hosts. It needs no network, and no script.
// Runs the simulations for its plots, with fewer runs than `options` asks for. REQUIRES: `all` is
// not empty, and was made with `options`.
std::string simulation_page(
    const sim::SimulationOptions& options,
    const std::vector<sim::SimulationResult>& all);

}  // namespace sherd::tools
