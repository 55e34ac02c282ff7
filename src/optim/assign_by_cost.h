// SPDX-License-Identifier: Apache-2.0
//
// Load balancing for optimizers that need whole matrices: decides which rank updates which matrix,
// so that all ranks finish at about the same time. Thread rule: pure functions, any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace sherd::optim {

// The multiplications of one Newton-Schulz iteration: with m the shorter side and n the longer,
// those of X X^T (m m n), A A (m m m) and B X (m m n).
std::int64_t newton_schulz_cost(std::int64_t rows, std::int64_t columns);

// Returns the owner of each item. Items are assigned in order of falling cost, each to the rank
// with the least cost so far (Graham 1969: at most 4/3 of the time of the best assignment); ties go
// by index and by rank. REQUIRES: ranks >= 1, costs >= 0.
std::vector<int> assign_by_cost(
    const std::vector<std::int64_t>& costs, int ranks);

}  // namespace sherd::optim
