// SPDX-License-Identifier: Apache-2.0
//
// RunSummary is what a long run of a Cluster came to: how much of the replicas'
// time made steps, and what became of the samples. Thread rule: values.
#pragma once

#include <cstdint>
#include "ft/outcome.h"

namespace sherd::ft::test {

struct RunSummary {
  std::int64_t steps = 0;
  double seconds = 0;  // From the first step to the last.
  // Fewest in any whole minute of the run; -1: it has none.
  std::int64_t commits_in_a_minute_min = -1;
  std::int64_t samples = 0;  // That were trained.
  std::int64_t samples_repeated = 0;
  // Before the last that was trained, and never trained themselves.
  std::int64_t samples_lost = 0;
  // Of the time of all replicas that there should be: in steps that were committed
  // with them. Of a longer one than usual, the usual time counts.
  double effective = 0;
};

RunSummary summary_of(const Outcome& outcome, int replicas);

}  // namespace sherd::ft::test
