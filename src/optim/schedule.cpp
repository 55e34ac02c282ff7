// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/schedule.h>

#include <cmath>
#include <numbers>
#include "base/check.h"

namespace sherd {
namespace {

void check_schedule(const LearningRateSchedule& schedule) {
  SHERD_CHECK(
      std::isfinite(schedule.peak) && schedule.peak >= 0.0,
      "[optim] schedule: expected a finite peak of at least 0, found ",
      schedule.peak);
  SHERD_CHECK(
      schedule.floor >= 0.0 && schedule.floor <= schedule.peak,
      "[optim] schedule: expected a floor between 0 and the peak ",
      schedule.peak, ", found ", schedule.floor);
  SHERD_CHECK(
      schedule.warmup_steps >= 0,
      "[optim] schedule: expected warmup_steps of at least 0, found ",
      schedule.warmup_steps);
  SHERD_CHECK(
      schedule.total_steps >= schedule.warmup_steps,
      "[optim] schedule: expected total_steps of at least warmup_steps ",
      schedule.warmup_steps, ", found ", schedule.total_steps);
}

// The part of the way from floor to peak that is left after `progress`, in [0, 1), of the decay.
double remaining(Decay decay, double progress) {
  switch (decay) {
    case Decay::kConstant:
      return 1.0;
    case Decay::kCosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case Decay::kLinear:
      return 1.0 - progress;
  }
  SHERD_ASSERT(false, "a decay without a formula");
}

}  // namespace

double learning_rate_at(
    std::int64_t step, const LearningRateSchedule& schedule) {
  check_schedule(schedule);
  SHERD_CHECK(
      step >= 0, "[optim] schedule: expected a step of at least 0, found ",
      step);
  if (step < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(step + 1) /
        static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.decay == Decay::kConstant) {
    return schedule.peak;
  }
  if (step >= schedule.total_steps) {
    return schedule.floor;
  }
  const double progress = static_cast<double>(step - schedule.warmup_steps) /
      static_cast<double>(schedule.total_steps - schedule.warmup_steps);
  return schedule.floor +
      (schedule.peak - schedule.floor) * remaining(schedule.decay, progress);
}

}  // namespace sherd
