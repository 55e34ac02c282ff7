// SPDX-License-Identifier: Apache-2.0
#include "ddp/step_timer.h"

namespace sherd::ddp {
namespace {

constexpr double ReplicaTimes::* kPhases[] = {
    &ReplicaTimes::forward_ms, &ReplicaTimes::backward_ms,
    &ReplicaTimes::communication_ms, &ReplicaTimes::overlap_ms};

double ms(Instant from, Instant to) { return 1e3 * seconds(to - from); }

}  // namespace

// If a rank's backward reaches no parameter, it has no gradient, and buckets that wait for the end
// are sent there.
void StepTimer::step_ended(Instant at) {
  if (!ended_) {
    return drop_step();  // This rank takes part without inputs.
  }
  const auto ended = *ended_;
  const auto gradient = gradient_.value_or(ended);
  const auto left = left_.value_or(ended);
  last_ = {
      .forward_ms = ms(forward_.value_or(gradient), gradient),
      .backward_ms = ms(gradient, ended),
      .communication_ms = ms(left, at),
      .overlap_ms = ms(left, ended)};
  for (const auto phase : kPhases) {
    sum_.*phase += last_.*phase;
  }
  ++steps_;
  drop_step();
}

void StepTimer::drop_step() {
  forward_.reset();
  gradient_.reset();
  left_.reset();
  ended_.reset();
}

ReplicaTimes StepTimer::mean() const {
  const auto steps = static_cast<double>(steps_ > 0 ? steps_ : 1);
  auto mean = sum_;
  for (const auto phase : kPhases) {
    mean.*phase /= steps;
  }
  return mean;
}

}  // namespace sherd::ddp
