// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <sstream>
#include "base/check.h"
#include "text_file.h"

namespace sherd::bench {

std::optional<std::int64_t> parse_pss(const std::string& smaps_rollup) {
  std::istringstream in(smaps_rollup);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    std::string unit;
    std::int64_t count = 0;
    if (words >> name >> count >> unit && name == "Pss:" && unit == "kB") {
      return count * 1024;
    }
  }
  return std::nullopt;
}

std::int64_t pss_bytes(const std::vector<int>& processes) {
  std::int64_t sum = 0;
  for (const int process : processes) {
    const auto text =
        tools::text_of_file(str("/proc/", process, "/smaps_rollup"));
    sum += parse_pss(text.value_or("")).value_or(0);
  }
  return sum;
}

}  // namespace sherd::bench
