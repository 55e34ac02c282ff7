// SPDX-License-Identifier: Apache-2.0
//
// Which gaps to bridge: as many bytes as the room at each visit allows. Every
// gap left costs one gather of its unit. Thread rule: pure functions; equal
// problems have equal answers on every machine.
#pragma once

#include <cstdint>
#include <vector>
#include "plan/gaps.h"

namespace sherd::plan {

// By gap: bridged. The bytes of the bridged gaps over a visit are at most its
// room.
std::vector<bool> keep_gaps(const GapProblem& problem);

// No choice leaves gaps of fewer bytes: gaps bridged in part, those with the
// nearest end first. Exact for that relaxation when no gap crosses the step
// boundary.
std::int64_t missed_bytes_bound(const GapProblem& problem);

// The same rule with whole gaps (Belady): optimal when units are equal and no
// gap crosses the step boundary. What keep_gaps() starts from.
std::vector<bool> keep_nearest_ends(const GapProblem& problem);

}  // namespace sherd::plan
