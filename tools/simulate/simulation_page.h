// SPDX-License-Identifier: Apache-2.0
//
// The page that `sherd simulate --html` writes: effective training time against the size of the
// cluster, the time between failures, the stall and the number of spare hosts. It needs no network,
// and no script. Thread rule: any thread.
#pragma once

#include <string>
#include <vector>
#include "simulate/simulation_json.h"

namespace sherd::tools {

// Runs the simulations for its plots, with fewer runs than `options` asks for. REQUIRES: `all` is
// not empty, and was made with `options`.
std::string simulation_page(
    const sim::SimulationOptions& options,
    const std::vector<sim::SimulationResult>& all);

}  // namespace sherd::tools
