// SPDX-License-Identifier: Apache-2.0
//
// Hosts that are slow for a while: all that train with one wait for it in each step. Which ones
// depends on the options and the seed alone, so that all policies meet the same. Thread rule: pure
// functions.
#pragma once

#include <cstdint>
#include <vector>
#include "base/clock.h"
#include "sim/simulate.h"

namespace sherd::sim {

struct Straggler {
  Instant from{};
  Instant until{};
  int replica = 0;
};

// Those of one run, in the order of their times. The first one comes at once if arrivals are even.
std::vector<Straggler> stragglers_of(
    const SimulationOptions& options, std::uint64_t seed);

// The replicas that are slow at a time; one may be named twice.
std::vector<int> slow_at(const std::vector<Straggler>& all, Instant at);

// For how long at least one is slow between two times.
Duration slow_time(
    const std::vector<Straggler>& all, Instant from, Instant until);

}  // namespace sherd::sim
