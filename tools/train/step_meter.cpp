// SPDX-License-Identifier: Apache-2.0
#include "train/step_meter.h"

#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <sstream>
#include "base/clock.h"
#include "base/host.h"

namespace sherd::tools {
namespace {

double busy_s() {
  std::string line;
  std::ifstream file("/proc/thread-self/schedstat");
  std::getline(file, line);
  timespec computed = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &computed);
  return static_cast<double>(computed.tv_sec) +
      static_cast<double>(computed.tv_nsec) * 1e-9 + core_wait_s(line);
}

}  // namespace

StepMeter::StepMeter()
    : begin_s_(seconds(SteadyClock().now())), busy_begin_s_(busy_s()) {}

RankMetrics StepMeter::measure() const {
  // It ends before the time of the step, as it began after it, and is never longer.
  const double busy = busy_s() - busy_begin_s_;
  return {
      .step_s = seconds(SteadyClock().now()) - begin_s_,
      .busy_s = busy,
      .rss_bytes = resident_bytes()};
}

double core_wait_s(const std::string& schedstat) {
  std::istringstream words(schedstat);
  std::int64_t on_core_ns = 0;  // This is only as recent as the last tick.
  std::int64_t without_core_ns = 0;
  return words >> on_core_ns >> without_core_ns
      ? static_cast<double>(without_core_ns) * 1e-9
      : 0;
}

double unix_time_s() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace sherd::tools
