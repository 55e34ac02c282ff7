// SPDX-License-Identifier: Apache-2.0
//
// Flags of a coordinator that `sherd coordinate` takes and `sherd run` passes on,
// with the same words. Thread rule: values.
#pragma once

#include <array>
#include <cstdlib>
#include <string>

namespace sherd::tools {

// For CLI11, whose own range lets "nan" through.
inline std::string check_seconds(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_number = end != text.c_str() && *end == '\0';
  return is_number && value >= 0 && value <= 1e6
      ? ""
      : "expected seconds from 0 to 1000000, found " + text;
}

struct CoordinatorTimes {
  double start_timeout_s = 60;
  double dead_after_s = 1;
  double hang_after_s = 5;
  double first_hang_after_s = 60;
  double hold_time_s = 60;
};

struct CoordinatorTimeFlag {
  const char* name;
  double CoordinatorTimes::* value;
  const char* description;
};

inline constexpr std::array<CoordinatorTimeFlag, 5> kCoordinatorTimeFlags = {{
    {"--start-timeout", &CoordinatorTimes::start_timeout_s,
     "How long the first step waits for replicas that\n"
     "have not arrived yet (60)"},
    {"--dead-after", &CoordinatorTimes::dead_after_s,
     "A replica that sends nothing for this long counts\n"
     "as lost (1)"},
    {"--hang-after", &CoordinatorTimes::hang_after_s,
     "A replica is left out if it makes no progress for\n"
     "this long and for ten times as long as usual (5)"},
    {"--first-hang-after", &CoordinatorTimes::first_hang_after_s,
     "The same limit for its first computations (60)"},
    {"--hold-time", &CoordinatorTimes::hold_time_s,
     "If only replicas that are away have the last step,\n"
     "the run goes back to an earlier one after this\n"
     "long (60)"},
}};

inline constexpr const char* kRecoverFlag = "--recover-from-replicas";
inline constexpr const char* kRecoverDescription =
    "Let a new log begin with the newest checkpoint that\n"
    "replicas have loaded, if the log of the run is lost";

}  // namespace sherd::tools
