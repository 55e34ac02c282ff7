// SPDX-License-Identifier: Apache-2.0
//
// The choice of gaps to bridge so that few bytes are gathered: farthest next use, improved by local
// search where units differ in size or are carried over the step boundary. The search ends after a
// fixed number of exchanges, never after a time, so that every rank ends with the same choice.
// Thread rule: pure functions; equal problems have equal answers everywhere.
#pragma once

#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// By gap: whether it is bridged. The bytes of the bridged gaps over a visit are at most its room.
// Bridges at least as many bytes as keep_by_farthest_next_use().
std::vector<bool> keep_gaps(const GapProblem& problem);

}  // namespace sherd::plan
