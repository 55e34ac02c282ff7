// SPDX-License-Identifier: Apache-2.0
#include "plan/recorded_memory.h"

#include <algorithm>
#include <map>
#include <utility>

namespace sherd::plan {
namespace {

class Reading {
 public:
  explicit Reading(std::int64_t always_bytes) : always_bytes_(always_bytes) {
    found_.step.base_bytes.resize(1);
  }

  void take(const MemoryEvent& event) {
    auto& base = found_.step.base_bytes[waiting()];
    base = std::max(base, always_bytes_ + event.peak_bytes);
    if (event.moment == MemoryMoment::kStepEnds) {
      found_.step.base_ns = event.ns;
      return;
    }
    if (event.moment == MemoryMoment::kForwardBegins) {
      add(event.region);
    }
    if (const auto known = regions_.find(event.region);
        known != regions_.end()) {
      note(event, known->second);
    }
  }

  RecordedMemory finish() {
    for (const auto number : found_.regions) {
      const auto& region = regions_.at(number);
      found_.step.units.push_back(
          {.activation_bytes = region.activation_bytes * region.waits_max,
           .recompute_ns = region.recompute_ns});
      found_.step.base_ns -= region.recompute_ns;
    }
    found_.step.base_ns = std::max<std::int64_t>(found_.step.base_ns, 0);
    return std::move(found_);
  }

 private:
  struct Region {
    std::size_t place = 0;   // In the order of forward.
    std::int64_t waits = 0;  // Forwards whose backward has not begun.
    std::int64_t waits_max = 0;
    MemoryEvent again = {};
    std::int64_t activation_bytes = 0;
    std::int64_t recompute_ns = 0;
  };

  void add(int number) {
    if (regions_.try_emplace(number, Region{.place = found_.regions.size()})
            .second) {
      found_.regions.push_back(number);
      found_.step.base_bytes.resize(found_.regions.size() + 1);
    }
  }

  // Backward has the reverse order of forward, so at most this many of the first regions wait.
  std::size_t waiting() const {
    std::size_t count = 0;
    for (const auto& [number, region] : regions_) {
      count = region.waits > 0 ? std::max(count, region.place + 1) : count;
    }
    return count;
  }

  static void note(const MemoryEvent& event, Region& region) {
    const auto& again = region.again;
    switch (event.moment) {
      case MemoryMoment::kForwardEnds:
        ++region.waits;
        region.waits_max = std::max(region.waits_max, region.waits);
        break;
      case MemoryMoment::kAgainBegins:
        region.waits = std::max<std::int64_t>(region.waits - 1, 0);
        region.again = event;
        break;
      case MemoryMoment::kAgainEnds:
        region.activation_bytes =
            std::max(region.activation_bytes, event.bytes - again.bytes);
        // Other threads may have waited for gathers meanwhile.
        region.recompute_ns += std::max<std::int64_t>(
            0, (event.ns - again.ns) - (event.gather_ns - again.gather_ns));
        break;
      case MemoryMoment::kForwardBegins:
      case MemoryMoment::kStepEnds:
        break;
    }
  }

  const std::int64_t always_bytes_;
  std::map<int, Region> regions_;
  RecordedMemory found_;
};

}  // namespace

RecordedMemory recorded_memory(
    std::span<const MemoryEvent> events, std::int64_t always_bytes) {
  Reading reading(always_bytes);
  for (const auto& event : events) {
    reading.take(event);
  }
  return reading.finish();
}

std::optional<RecordedMemory> with_times(
    RecordedMemory memory, const RecordedMemory& times) {
  if (memory.regions != times.regions) {
    return std::nullopt;
  }
  memory.step.base_ns = times.step.base_ns;
  for (std::size_t i = 0; i < memory.step.units.size(); ++i) {
    memory.step.units[i].recompute_ns = times.step.units[i].recompute_ns;
  }
  return memory;
}

void add_gathered_units(std::span<const UnitMemory> units, StepMemory& step) {
  for (const auto& unit : units) {
    step.base_ns = std::max<std::int64_t>(step.base_ns - unit.gather_ns, 0);
  }
  step.units.insert(step.units.begin(), units.begin(), units.end());
  step.base_bytes.insert(step.base_bytes.begin(), units.size(), 0);
}

}  // namespace sherd::plan
