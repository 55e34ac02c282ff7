// SPDX-License-Identifier: Apache-2.0
//
// How long those that stay wait for their next step when a replica is lost: the figure that `sherd
// bench faults` measures with real processes. Thread rule: a pure function.
#pragma once

#include <vector>
#include "base/clock.h"
#include "sim/world.h"

namespace sherd::sim {

// In each of `losses` worlds, all replicas train without faults until the processes of one of them
// end: in the first world at the beginning of a step, in the next ones evenly later within it.
// Returns for each the longest time between two commits since then. REQUIRES: more than one replica.
std::vector<Duration> gaps_of_losses(
    int replicas, int ranks_per_replica, const WorldTimes& times, int losses);

}  // namespace sherd::sim
