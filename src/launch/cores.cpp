// SPDX-License-Identifier: Apache-2.0
#include "launch/cores.h"

#include <sched.h>
#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <thread>
#include <tuple>
#include "base/check.h"

namespace sherd::launch {
namespace {

int read_topology(int core, const char* file, int otherwise) {
  std::ifstream in(str(
      "/sys/devices/system/cpu/cpu", core, "/topology/", file));
  int value = otherwise;
  return in >> value ? value : otherwise;
}

}  // namespace

std::vector<Core> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<Core> cores;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) {
        cores.push_back(
            {i, read_topology(i, "physical_package_id", 0),
             read_topology(i, "core_id", i)});
      }
    }
  }
  if (cores.empty()) {  // More cores than the set holds.
    const int count =
        static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
    for (int i = 0; i < count; ++i) {
      cores.push_back({i, 0, i});
    }
  }
  return cores;
}

std::vector<std::vector<int>> divide_cores(std::vector<Core> cores, int ranks) {
  SHERD_ASSERT(ranks >= 1);
  const auto parts = static_cast<std::size_t>(ranks);
  if (cores.size() < parts) {
    return {};
  }
  std::sort(cores.begin(), cores.end(), [](const Core& a, const Core& b) {
    return std::tie(a.package, a.physical, a.number) <
        std::tie(b.package, b.physical, b.number);
  });
  std::vector<std::vector<int>> divided(parts);
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t end = cores.size() * (part + 1) / parts;
    for (std::size_t i = cores.size() * part / parts; i < end; ++i) {
      divided[part].push_back(cores[i].number);
    }
  }
  return divided;
}

}  // namespace sherd::launch
