// SPDX-License-Identifier: Apache-2.0
#include "bench/memory.h"

#include <sstream>
#include "base/check.h"
#include "text_file.h"

namespace sherd::bench {
namespace {

std::string text_of(int process, const char* name) {
  return tools::text_of_file(str("/proc/", process, "/", name)).value_or("");
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

std::optional<ProcessUsage> parse_usage(const std::string& stat) {
  // The format is PID (NAME) STATE ..., where the name may contain anything. proc(5) counts fields
  // from 1: minor faults are 10, user mode 14, kernel 15.
  const auto end_of_name = stat.rfind(')');
  if (end_of_name == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream in(stat.substr(end_of_name + 1));
  std::vector<std::int64_t> fields(16);
  std::string state;
  in >> state;
  for (std::size_t i = 4; i < fields.size(); ++i) {
    in >> fields[i];
  }
  if (!in) {
    return std::nullopt;
  }
  return ProcessUsage{.faults = fields[10], .ticks = fields[14] + fields[15]};
}

ProcessUsage usage_of(const std::vector<int>& processes) {
  ProcessUsage sum;
  for (const int process : processes) {
    const auto one =
        parse_usage(text_of(process, "stat")).value_or(ProcessUsage{});
    sum.faults += one.faults;
    sum.ticks += one.ticks;
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

}  // namespace sherd::bench
