// SPDX-License-Identifier: Apache-2.0
//
// Belady's rule, farthest next use: bridge every gap and, where there is no room, give up the gap
// that ends last. For whole gaps it gives a schedule to start from; for parts of gaps, a bound for
// all schedules. Thread rule: pure functions; equal problems have equal answers on every machine.
#pragma once

#include <cstdint>
#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// Returns, by gap, whether it is bridged. At each visit the bytes of the bridged gaps fit the room.
// Optimal if units are equal and no gap crosses the step boundary.
std::vector<bool> keep_by_farthest_next_use(const GapProblem& problem);

// No choice leaves fewer bytes unbridged, not even one that bridges parts of gaps. If no gap
// crosses the step boundary, some choice of parts reaches this bound.
std::int64_t missed_bytes_lower_bound(const GapProblem& problem);

}  // namespace sherd::plan
