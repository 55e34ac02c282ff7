// SPDX-License-Identifier: Apache-2.0
//
// StartPlan is what the launcher decides for all ranks before the first one starts: the program,
// and the cores to which each rank is bound. Dividing the cores is a pure function; usable_cores()
// reads what the machine has. Thread rule: values.
#pragma once

#include <string>
#include <vector>
#include <sherd/launch/launch.h>
#include "launch/rank_variables.h"
#include "launch/supervisor.h"

namespace sherd::launch {

// A hardware thread and its location.
struct CpuCore {
  int number = 0;    // As in CPU affinity masks.
  int package = 0;   // The chip it is on.
  int physical = 0;  // Hardware threads of one physical core share it.
};

// The cores on which this process may run (its CPU affinity); at least one.
std::vector<CpuCore> usable_cores();

// The cores of each rank: disjoint, with sizes that differ by at most one; neighbouring ranks are
// on one chip and threads of one physical core together as far as the numbers allow. Empty if there
// are fewer cores than ranks: then the kernel distributes them better. REQUIRES: ranks >= 1.
std::vector<std::vector<int>> divide_cores(
    std::vector<CpuCore> cores, int ranks);

struct StartPlan {
  std::string path;  // The path of the program.
  int threads = 1;   // Each rank's share of the cores; may be 0.
  // The cores of each rank; empty if unbound.
  std::vector<std::vector<int>> division;
};

// Makes room for the processes of the job (start_limits.h), finds the program, checks that processes
// that have to meet on this host can, divides the cores among the ranks, without those of spares,
// and makes the folder for logs.
StartStatus plan_start(const LaunchOptions& options, StartPlan* plan);

// The rank in slot `slot`, named `name` in messages, on the cores of that slot.
SupervisedProcessSpec rank_process_spec(
    const LaunchOptions& options,
    const StartPlan& plan,
    const RankVariables& place,
    int slot,
    const std::string& name);

}  // namespace sherd::launch
