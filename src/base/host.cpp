// SPDX-License-Identifier: Apache-2.0
#include "base/host.h"

#include <sched.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <thread>

namespace sherd {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

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

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages_total = 0;
  std::int64_t pages_resident = 0;
  statm >> pages_total >> pages_resident;
  return pages_resident * ::sysconf(_SC_PAGESIZE);
}

std::int64_t resident_bytes_peak() {
  const std::string field = "VmHWM:";
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field)) {
      return std::stoll(line.substr(field.size())) * 1024;
    }
  }
  return 0;
}

}  // namespace sherd
