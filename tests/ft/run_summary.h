// SPDX-License-Identifier: Apache-2.0
//
// RunSummary summarises a long run of a Cluster: how much of the replicas' time made steps, and
// what became of the samples. Thread rule: values.
#pragma once

#include <cstdint>
#include "ft/outcome.h"

namespace sherd::ft::test {

struct RunSummary {
  std::int64_t steps = 0;
  double seconds = 0;  // From the first step to the last.
  // The fewest in any whole minute of the run; -1 if it has none.
  std::int64_t commits_in_a_minute_min = -1;
  std::int64_t samples = 0;  // Trained samples.
  std::int64_t samples_repeated = 0;
  // Samples before the last trained one that were never trained themselves.
  std::int64_t samples_lost = 0;
  // The share of the time of all expected replicas that went into steps committed with them. A step
  // that took longer than usual counts with the usual time.
  double effective = 0;
};

RunSummary summary_of(const Outcome& outcome, int replicas);

}  // namespace sherd::ft::test
