// SPDX-License-Identifier: Apache-2.0
#include "base/cores.h"

#include <sched.h>
#include <algorithm>
#include <numeric>
#include <thread>

namespace sherd {

std::vector<int> allowed_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) {
        cores.push_back(i);
      }
    }
  }
  if (cores.empty()) {  // The host has more cores than the set holds.
    cores.resize(std::max(1U, std::thread::hardware_concurrency()));
    std::iota(cores.begin(), cores.end(), 0);
  }
  return cores;
}

}  // namespace sherd
