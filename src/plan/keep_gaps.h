// SPDX-License-Identifier: Apache-2.0
//
// Chooses the gaps to bridge so that few bytes are gathered: farthest next use, improved by local
// search if units differ in size or are carried over the step boundary. The search ends after a
// fixed number of exchanges, never after a time, so that every rank ends with the same choice.
// Thread rule: pure functions; equal problems have equal answers on every machine.
#pragma once

#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// Returns, by gap, whether it is bridged. At each visit the bytes of the bridged gaps fit the room.
// Bridges at least as many bytes as keep_by_farthest_next_use().
std::vector<bool> keep_gaps(const GapProblem& problem);

}  // namespace sherd::plan
