// SPDX-License-Identifier: Apache-2.0
//
// StartPlan is what the launcher decides for all ranks before the first one starts: the program
// and which cores each rank is bound to. Thread rule: a value.
#pragma once

#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "base/status.h"
#include "launch/rank_variables.h"
#include "launch/supervisor.h"

namespace sherd::launch {

struct StartPlan {
  std::string path;                        // The program.
  int cores = 1;                           // Usable by all ranks together.
  std::vector<std::vector<int>> division;  // Each rank's cores; empty: unbound.
  StartFailure failure;                    // With a message: nothing can start.
};

// Finds the program, divides the cores among `ranks`, and makes the folder for logs.
StartPlan plan_start(const LaunchOptions& options, int ranks);

// The rank in slot `slot`, named `name` in messages, on the cores of that slot.
SupervisedProcessSpec rank_process_spec(
    const LaunchOptions& options,
    const StartPlan& plan,
    const RankVariables& place,
    int slot,
    const std::string& name);

}  // namespace sherd::launch
