// SPDX-License-Identifier: Apache-2.0
#include "base/resident_memory.h"

#include <unistd.h>
#include <fstream>
#include <string>

namespace sherd {

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
