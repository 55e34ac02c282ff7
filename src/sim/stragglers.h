// SPDX-License-Identifier: Apache-2.0
//
// Hosts that are slow for a while: all replicas that train with one wait for it in each step. Which
// hosts depends only on the options and the seed, so that all policies meet the same ones. Thread
// rule: pure functions.
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

// The stragglers of one run, in the order of their times. The first one comes at once if arrivals
// are even.
std::vector<Straggler> stragglers_of(
    const SimulationOptions& options, std::uint64_t seed);

// The replicas that are slow at that time; a replica may appear twice.
std::vector<int> slow_at(const std::vector<Straggler>& all, Instant at);

// For how long at least one replica is slow between two times.
Duration slow_time(
    const std::vector<Straggler>& all, Instant from, Instant until);

}  // namespace sherd::sim
