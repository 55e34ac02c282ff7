// SPDX-License-Identifier: Apache-2.0
//
// Plans a step within a memory limit: for each unit, whether it stays whole from its forward to its
// backward or is gathered again, and whether its activations are kept or recomputed. The plan takes
// the least time among all that stay within the limit. How: docs/design/memory.md. Thread rule:
// pure functions and values; the same input gives the same plan on every machine (integers only, no
// time limit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#include "base/status.h"

namespace sherd::plan {

// The costs of one unit, over all micro-batches of a step.
struct UnitMemory {
  std::int64_t whole_bytes = 0;  // While it is kept whole.
  std::int64_t gather_ns = 0;    // To gather it again instead.
  // Beyond what a recomputation needs to keep.
  std::int64_t activation_bytes = 0;
  std::int64_t recompute_ns = 0;  // To recompute its activations instead.
};

// A step in which nothing was kept.
struct StepMemory {
  // In the order of forward. Backward has the reverse order.
  std::vector<UnitMemory> units;
  // At index k, from 0 to the number of units: the most bytes in use while k units have had their
  // forward and wait for their backward.
  std::vector<std::int64_t> base_bytes;
  // The time that the step would take if everything were kept.
  std::int64_t base_ns = 0;
};

struct UnitChoice {
  bool keep_whole = false;
  bool keep_activations = false;

  bool operator==(const UnitChoice&) const = default;
};

struct MemoryPlan {
  std::vector<UnitChoice> units;  // In the order of StepMemory::units.
  std::int64_t peak_bytes = 0;
  std::int64_t step_ns = 0;
  // No choice within the limit takes less. Equal to `step_ns` unless there were too many states to
  // keep all of them.
  std::int64_t lower_bound_ns = 0;
};

struct MemoryPlanOptions {
  std::int64_t bytes_max = 0;
  // How many partial choices are kept after each unit. If there are more, bytes are rounded to that
  // many steps.
  std::size_t states_max = 20'000;
};

// The functions below throw if a figure is negative, a sum overflows or lists do not match.

// The peak when nothing is kept. No lower limit can be met.
std::int64_t memory_floor(const StepMemory& step);

// The choice with its peak and its time, but without a bound.
MemoryPlan cost_of(const StepMemory& step, std::vector<UnitChoice> choice);

// Returns kInvalidArgument, naming the floor, if bytes_max is below it.
Result<MemoryPlan> plan_memory(
    const StepMemory& step, const MemoryPlanOptions& options);

}  // namespace sherd::plan
