// SPDX-License-Identifier: Apache-2.0
#include "launch/core_binding.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <string>
#include <tuple>
#include "base/check.h"
#include "base/cores.h"

namespace sherd::launch {
namespace {

int read_topology(int core, const char* file, int otherwise) {
  std::ifstream in(
      str("/sys/devices/system/cpu/cpu", core, "/topology/", file));
  int value = otherwise;
  return in >> value ? value : otherwise;
}

}  // namespace

std::vector<CpuCore> usable_cores() {
  std::vector<CpuCore> cores;
  for (const int number : allowed_cores()) {
    cores.push_back(
        {number, read_topology(number, "physical_package_id", 0),
         read_topology(number, "core_id", number)});
  }
  return cores;
}

std::vector<std::vector<int>> divide_cores(
    std::vector<CpuCore> cores, int ranks) {
  SHERD_ASSERT(ranks >= 1);
  const auto parts = static_cast<std::size_t>(ranks);
  if (cores.size() < parts) {
    return {};
  }
  std::ranges::sort(cores, {}, [](const CpuCore& one) {
    return std::tie(one.package, one.physical, one.number);
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
