// SPDX-License-Identifier: Apache-2.0
//
// StartPlan is what all ranks of a launcher have in common, found out before the
// first of them starts: the program, the cores and who gets which. Thread rule: a
// value.
#pragma once

#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "base/status.h"
#include "launch/child_process.h"
#include "launch/rank_variables.h"
#include "launch/supervisor.h"

namespace sherd::launch {

struct StartPlan {
  std::string path;                        // Of the program.
  int cores = 1;                           // Usable by all ranks together.
  std::vector<std::vector<int>> division;  // Of them; empty: not divided.
  StartFailure failure;                    // With a message: nothing can start.
};

// Finds the program, divides the cores among so many ranks, and makes the folder
// for logs.
StartPlan plan_start(const LaunchOptions& options, int ranks);

// A rank called `name` in slot `slot`, which has the cores of that number.
SupervisedProcessSpec rank_process_spec(
    const LaunchOptions& options,
    const StartPlan& plan,
    const RankVariables& place,
    int slot,
    const std::string& name);

}  // namespace sherd::launch
