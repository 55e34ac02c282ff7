// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/session_timeouts.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>

#include "base/check.h"

namespace sherd::ft {
namespace {

using std::chrono::milliseconds;

struct NamedTimeout {
  const char* name;
  milliseconds SessionTimeouts::* value;
};

constexpr std::array<NamedTimeout, 7> kTimeouts = {{
    {"leave", &SessionTimeouts::leave},
    {"connect", &SessionTimeouts::connect},
    {"link", &SessionTimeouts::link},
    {"fetch", &SessionTimeouts::fetch},
    {"snapshot", &SessionTimeouts::snapshot},
    {"siblings", &SessionTimeouts::siblings},
    {"linger", &SessionTimeouts::linger},
}};
constexpr double kSecondsMax = 1e6;

std::string all_names() {
  std::string names;
  for (const auto& one : kTimeouts) {
    names += str(names.empty() ? "" : ", ", one.name);
  }
  return names;
}

// At least one millisecond; 0 if the text is no such time.
milliseconds time_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool is_time = end != text.c_str() && *end == '\0' &&
      std::isfinite(value) && value > 0 && value <= kSecondsMax;
  return milliseconds(
      is_time ? static_cast<std::int64_t>(std::ceil(value * 1000)) : 0);
}

void set_one(SessionTimeouts& timeouts, const std::string& entry) {
  const auto at = entry.find('=');
  for (const auto& one : kTimeouts) {
    if (entry.substr(0, at) == one.name && at != std::string::npos) {
      timeouts.*one.value = time_of(entry.substr(at + 1));
      SHERD_CHECK(
          timeouts.*one.value > milliseconds(0),
          "[ft] SHERD_TIMEOUTS: expected ", one.name,
          "=SECONDS, above 0 and at most ", kSecondsMax, ", found \"", entry,
          "\"");
      return;
    }
  }
  throw Error(str(
      "[ft] SHERD_TIMEOUTS: expected NAME=SECONDS, separated by commas, with "
      "names among ",
      all_names(), ", found \"", entry, "\""));
}

}  // namespace

SessionTimeouts timeouts_of(const std::string& text) {
  SessionTimeouts timeouts;
  std::istringstream in(text);
  for (std::string entry; std::getline(in, entry, ',');) {
    set_one(timeouts, entry);
  }
  return timeouts;
}

void check_timeouts(const SessionTimeouts& timeouts) {
  for (const auto& one : kTimeouts) {
    SHERD_CHECK(
        timeouts.*one.value > milliseconds(0), "[ft] expected a timeout \"",
        one.name, "\" above 0 ms, found ", (timeouts.*one.value).count());
  }
}

}  // namespace sherd::ft
