// SPDX-License-Identifier: Apache-2.0
//
// StartPlan is what the launcher decides for all ranks before the first one starts: the program
// and which cores each rank is bound to. The division of cores is a pure function; what the machine
// has is read by usable_cores(). Thread rule: values.
#pragma once

#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "base/status.h"
#include "launch/rank_variables.h"
#include "launch/supervisor.h"

namespace sherd::launch {

// A hardware thread, and where it lies.
struct CpuCore {
  int number = 0;    // As in CPU affinity.
  int package = 0;   // The chip it is on.
  int physical = 0;  // Hardware threads of one physical core share it.
};

// The cores this process may run on (its CPU affinity); at least one.
std::vector<CpuCore> usable_cores();

// Per rank the cores it gets: disjoint, sizes differing by at most one, ranks
// beside each other on one chip and threads of one physical core together as
// far as the numbers allow. Empty when there are fewer cores than ranks: then
// the kernel shares them out better. REQUIRES: ranks >= 1.
std::vector<std::vector<int>> divide_cores(
    std::vector<CpuCore> cores, int ranks);

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
