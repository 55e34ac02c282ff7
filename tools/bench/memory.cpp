// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <fstream>
#include <sstream>

namespace sherd::tools::bench {
namespace {

std::string text_of(int process, const char* name) {
  const std::ifstream file("/proc/" + std::to_string(process) + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

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

std::optional<std::int64_t> parse_faults(const std::string& stat) {
  // PID (NAME) STATE and six more fields before it; a name may hold anything.
  const auto end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(stat.substr(end_of_name + 1));
  std::string skipped;
  for (int i = 0; i < 7; ++i) {
    fields >> skipped;
  }
  std::int64_t count = 0;
  return fields >> count ? std::optional(count) : std::nullopt;
}

std::int64_t faults(const std::vector<int>& processes) {
  std::int64_t sum = 0;
  for (const int process : processes) {
    sum += parse_faults(text_of(process, "stat")).value_or(0);
  }
  return sum;
}

std::int64_t pss_bytes(const std::vector<int>& processes) {
  std::int64_t sum = 0;
  for (const int process : processes) {
    sum += parse_pss(text_of(process, "smaps_rollup")).value_or(0);
  }
  return sum;
}

}  // namespace sherd::tools::bench
