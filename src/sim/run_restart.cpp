// SPDX-License-Identifier: Apache-2.0
//
// All replicas stop at each failure, and restart from the last checkpoint.
#include <algorithm>

#include "sim/failures.h"
#include "sim/runs.h"
#include "sim/stragglers.h"

namespace sherd::sim {

RunOutcome run_restart(const SimulationOptions& options, std::uint64_t seed) {
  const auto end = length_of(options);
  const auto down = minutes(options.down_min);
  const auto step = seconds_of(step_s_of(options));
  const auto checkpoint = minutes(options.checkpoint_min);
  const auto stragglers = stragglers_of(options, seed);
  FailureSource source(options, seed);
  SparePool spares(options.spares, minutes(options.repair_h * 60));
  RunOutcome outcome;
  // What is trained between two times: all wait for slow replicas.
  const auto train = [&](Instant from, Instant until, bool fails) {
    const double lost = seconds(slow_time(stragglers, from, until)) *
        (1 - 1 / options.straggler_factor);
    const auto time = until - from - seconds_of(lost);
    if (time <= Duration(0)) {
      return;
    }
    const auto made = time / step;
    const auto kept = fails && checkpoint > Duration(0)
        ? (time / checkpoint) * checkpoint / step
        : made;
    outcome.commits += kept;
    outcome.discarded += made - kept + (fails ? 1 : 0);
  };
  Instant runs_from{0};
  for (auto failure = source.next(); failure.at < end;
       failure = source.next()) {
    ++outcome.failures;
    train(runs_from, failure.at, true);
    Instant there = failure.at;
    for (std::size_t i = 0; i < failure.replicas.size(); ++i) {
      there = std::max(there, spares.replace(failure.at));
    }
    runs_from = std::max(runs_from, there + down);
  }
  train(runs_from, end, false);
  outcome.elapsed_s = seconds(end);
  outcome.steps_s = static_cast<double>(outcome.commits) * step_s_of(options);
  outcome.work_s = outcome.steps_s;
  return outcome;
}

}  // namespace sherd::sim
