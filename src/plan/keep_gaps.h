// SPDX-License-Identifier: Apache-2.0
//
// Which gaps to bridge so that few bytes are gathered: farthest next use, and
// local improvement for what it leaves when units differ in size or are carried
// over the step boundary. The improvement ends after a fixed number of moves,
// never after a time, so that every rank ends with the same choice.
// Thread rule: pure functions; equal problems have equal answers everywhere.
#pragma once

#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// By gap: bridged. The bytes of the bridged gaps over a visit are at most its
// room. Never fewer bytes than keep_by_farthest_next_use().
std::vector<bool> keep_gaps(const GapProblem& problem);

}  // namespace sherd::plan
