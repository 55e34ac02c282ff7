// SPDX-License-Identifier: Apache-2.0
//
// The flags of a coordinator that `sherd coordinate` takes and `sherd run` passes on. Thread rule:
// values.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <sherd/ft/coordinator.h>

namespace sherd::tools {

// For CLI11, whose own range check accepts "nan".
inline std::string check_seconds(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_number = end != text.c_str() && *end == '\0';
  return is_number && value >= 0 && value <= 1e6
      ? ""
      : "expected seconds from 0 to 1000000, found " + text;
}

inline std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

struct CoordinatorTimeFlag {
  const char* name;
  std::chrono::milliseconds ft::CoordinateOptions::* value;
  const char* description;  // The default is appended.
};

inline constexpr std::array<CoordinatorTimeFlag, 14> kCoordinatorTimeFlags = {{
    {"--start-timeout", &ft::CoordinateOptions::start_timeout,
     "How long the first step waits for replicas that\n"
     "have not arrived yet"},
    {"--hold-time", &ft::CoordinateOptions::hold_time,
     "If only replicas that are away have the last step,\n"
     "the run goes back to an earlier one after this\n"
     "long"},
    {"--dead-after", &ft::CoordinateOptions::dead_after,
     "A replica that sends nothing for this long counts\n"
     "as lost; at least 0.5"},
    {"--hang-after", &ft::CoordinateOptions::hang_after,
     "A replica is left out if it makes no progress for\n"
     "this long and for ten times as long as usual"},
    {"--first-hang-after", &ft::CoordinateOptions::first_hang_after,
     "The same limit for its first computations, for what\n"
     "it does for the first time, and between steps"},
    {"--slow-after", &ft::CoordinateOptions::slow_after,
     "It is shown as slow after this long and three times\n"
     "as long as usual"},
    {"--settle", &ft::CoordinateOptions::settle,
     "Failures that come together within this time make\n"
     "one new epoch"},
    {"--join-timeout", &ft::CoordinateOptions::join_timeout,
     "How long members of a new epoch may take to connect\n"
     "to each other"},
    {"--reconnect-timeout", &ft::CoordinateOptions::reconnect_timeout,
     "How long a coordinator that was started again waits\n"
     "for the members of the last epoch"},
    {"--vote-timeout", &ft::CoordinateOptions::vote_timeout,
     "How long after the first vote the votes that are\n"
     "there make the step"},
    {"--left-out-min", &ft::CoordinateOptions::left_out_min,
     "How long a replica that fails the others again is\n"
     "left out; twice as long each time"},
    {"--left-out-max", &ft::CoordinateOptions::left_out_max,
     "And at most this long"},
    {"--first-report-timeout", &ft::CoordinateOptions::first_report_timeout,
     "A connection on which no report has come by then is\n"
     "closed"},
    {"--log-retry-max", &ft::CoordinateOptions::log_retry_max,
     "The longest time between two attempts to write a\n"
     "log that cannot be written"},
}};

// For example "How long (60)".
inline std::string description_of(const CoordinatorTimeFlag& flag) {
  const ft::CoordinateOptions defaults;
  std::ostringstream text;
  text << flag.description << " ("
       << static_cast<double>((defaults.*flag.value).count()) / 1000 << ")";
  return text.str();
}

inline constexpr const char* kRecoverFlag = "--recover-from-replicas";
inline constexpr const char* kRecoverDescription =
    "Let a new log go on with the run that all its replicas\n"
    "remember, or, if none does, begin with the newest\n"
    "checkpoint that they have loaded: if the log is lost";

}  // namespace sherd::tools
