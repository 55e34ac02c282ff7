// SPDX-License-Identifier: Apache-2.0
//
// The rule of farthest next use (Belady): bridge every gap, and where there is
// no room, give up the one that ends last. For whole gaps it is a schedule to
// start from; for parts of gaps a bound for all schedules. Thread rule: pure
// functions; equal problems have equal answers everywhere.
#pragma once

#include <cstdint>
#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// By gap: bridged. The bytes of the bridged gaps over a visit are at most its
// room. No choice bridges more when units are equal and no gap crosses the step
// boundary.
std::vector<bool> keep_by_farthest_next_use(const GapProblem& problem);

// No choice leaves gaps of fewer bytes, not even one that bridges parts of them.
// Some choice of parts reaches it when no gap crosses the step boundary.
std::int64_t missed_bytes_lower_bound(const GapProblem& problem);

}  // namespace sherd::plan
