// SPDX-License-Identifier: Apache-2.0
//
// Any bytes stand for a step to plan. Inputs that contradict themselves must be refused; schedules
// of the others must keep their promises. Tiny ones are also compared with every other way to keep
// and drop units.
#include "plan/unit_schedule.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>
#include <sherd/base/error.h>
#include "base/check.h"
#include "plan/schedule_testing.h"
#include "support/fuzz_bytes.h"

namespace sherd::plan {
namespace {

using test::FuzzBytes;

struct Step {
  ScheduleInput input;
  bool valid = false;
};

// Mostly a step that fits; one of 16 takes the bytes as they are.
Step step_of(FuzzBytes bytes) {
  const std::uint8_t kind = bytes.next();
  const bool wild = kind % 16 == 15;
  const int units = 1 + bytes.next() % 12;
  const int common = bytes.next();
  ScheduleInput input;
  input.ahead_visits = kind / 16 % 4 - (wild ? 1 : 0);
  for (int unit = 0; unit < units; ++unit) {
    const std::uint8_t byte = bytes.next();
    input.unit_bytes.push_back(byte % 64 - (wild ? 1 : 0));
    input.carried.push_back(byte >= 192);
  }
  while (!bytes.empty()) {
    const std::uint8_t byte = bytes.next();
    std::vector<UnitId> set{byte % (wild ? 16 : units)};
    for (int more = byte / 64; more > 1; --more) {
      set.push_back(bytes.next() % units);
    }
    std::int64_t bytes_needed = 0;
    if (!wild) {
      std::sort(set.begin(), set.end());
      set.erase(std::unique(set.begin(), set.end()), set.end());
      for (const UnitId unit : set) {
        bytes_needed += input.unit_bytes[static_cast<std::size_t>(unit)];
      }
    }
    input.visits.push_back(std::move(set));
    const int budget = kind % 2 == 0 ? common : bytes.next();
    input.budget_bytes.push_back(bytes_needed + budget);
  }
  return {.input = std::move(input), .valid = !wild};
}

void check_promises(const ScheduleInput& input, const UnitSchedule& schedule) {
  const std::string broken = broken_promise(input, schedule);
  SHERD_ASSERT(broken.empty(), "schedule: ", broken);
  if (input.unit_bytes.size() <= 4 && input.visits.size() <= 40) {
    const std::int64_t least = least_gathered_bytes(input);
    SHERD_ASSERT(schedule.report.lower_bound_bytes <= least, "least ", least);
    SHERD_ASSERT(least <= schedule.report.gathered_bytes, "least ", least);
  }
}

void run(const Step& step) {
  const ScheduleInput& input = step.input;
  try {
    const Result<UnitSchedule> schedule = make_unit_schedule(input);
    (void)fingerprint(input);
    SHERD_ASSERT(
        schedule.ok() || !step.valid, "refused: ", schedule.status().message());
    if (schedule.ok()) {
      check_promises(input, schedule.value());
    }
  } catch (const Error& error) {
    SHERD_ASSERT(!step.valid, "refused: ", error.what());
  }
}

}  // namespace
}  // namespace sherd::plan

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name.
extern "C" int LLVMFuzzerTestOneInput(
    const std::uint8_t* data, std::size_t size) {
  sherd::plan::run(sherd::plan::step_of(sherd::test::FuzzBytes({data, size})));
  return 0;
}
