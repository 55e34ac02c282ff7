// SPDX-License-Identifier: Apache-2.0
//
// The learning rate as a function of the step only, so that a run that resumes at step n continues
// exactly, and ranks agree without messages. Call adamw.set_learning_rate(learning_rate_at(step,
// schedule)) before step(). Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>

namespace sherd {

enum class Decay {
  kConstant,  // Stays at the peak.
  kCosine,    // Half a cosine from peak to floor (arXiv 1608.03983).
  kLinear,    // A straight line from peak to floor.
};

struct LearningRateSchedule {
  double peak = 1e-3;  // Reached at the end of the warm-up.
  double floor = 0.0;  // In [0, peak]; holds from total_steps on.
  // The rate climbs linearly: it is peak / warmup_steps in step 0 and peak in step
  // warmup_steps - 1. 0: no warm-up.
  std::int64_t warmup_steps = 0;
  // Step total_steps would be the first at the floor. At least warmup_steps.
  std::int64_t total_steps = 0;
  Decay decay = Decay::kCosine;
};

// The learning rate of a step, counted from 0. Throws Error if the step is negative or the schedule
// contradicts itself.
double learning_rate_at(
    std::int64_t step, const LearningRateSchedule& schedule);

}  // namespace sherd
