// SPDX-License-Identifier: Apache-2.0
//
// Which cores a rank may use. The division is a pure function; what the machine
// has is read by usable_cores(). Thread rule: any thread.
#pragma once

#include <vector>

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

}  // namespace sherd::launch
