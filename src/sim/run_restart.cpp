// SPDX-License-Identifier: Apache-2.0
//
// All replicas stop at each failure, and restart from the last checkpoint.
#include <algorithm>

#include "sim/failures.h"
#include "sim/runs.h"
#include "sim/stragglers.h"

namespace sherd::sim {
namespace {

// The result of a stretch of training between two failures.
class Stretches {
 public:
  Stretches(Duration step, Duration checkpoint)
      : step_(step), checkpoint_(checkpoint) {}

  void add(Duration time, bool ends_with_failure, RunOutcome& outcome) const {
    if (time <= Duration(0)) {
      return;
    }
    const auto made = time / step_;
    auto kept = made;
    if (ends_with_failure && checkpoint_ > Duration(0)) {
      kept = (time / checkpoint_) * checkpoint_ / step_;
    }
    outcome.commits += kept;
    outcome.discarded += made - kept + (ends_with_failure ? 1 : 0);
  }

 private:
  Duration step_;
  Duration checkpoint_;
};

}  // namespace

RunOutcome run_restart(const SimulationOptions& options, std::uint64_t seed) {
  const auto end = length_of(options);
  const auto down = minutes(options.down_min);
  const Stretches stretches(
      seconds_of(step_s_of(options)), minutes(options.checkpoint_min));
  const auto stragglers = stragglers_of(options, seed);
  // The training time between two times: all wait for slow replicas.
  const auto trained = [&](Instant from, Instant until) {
    const double lost = seconds(slow_time(stragglers, from, until)) *
        (1 - 1 / options.straggler_factor);
    return until - from - seconds_of(lost);
  };
  FailureSource source(options, seed);
  SparePool spares(options.spares, minutes(options.repair_h * 60));
  RunOutcome outcome;
  Instant runs_from{0};
  for (auto failure = source.next(); failure.at < end;
       failure = source.next()) {
    ++outcome.failures;
    stretches.add(trained(runs_from, failure.at), true, outcome);
    Instant there = failure.at;
    for (std::size_t i = 0; i < failure.replicas.size(); ++i) {
      there = std::max(there, spares.replace(failure.at));
    }
    runs_from = std::max(runs_from, there + down);
  }
  stretches.add(trained(runs_from, end), false, outcome);
  outcome.elapsed_s = seconds(end);
  outcome.steps_s = static_cast<double>(outcome.commits) * step_s_of(options);
  outcome.work_s = outcome.steps_s;
  return outcome;
}

}  // namespace sherd::sim
