// SPDX-License-Identifier: Apache-2.0
//
// How long the survivors wait for their next step when a replica is lost: the figure that `sherd
// bench faults` measures with real processes. Thread rule: a pure function.
#pragma once

#include "base/clock.h"
#include "sim/world.h"

namespace sherd::sim {

// All replicas train without faults until the processes of one of them end, `into_step` after a
// commit. Returns the longest time between two commits since then. REQUIRES: more than one replica.
Duration gap_of_loss(
    int replicas,
    int ranks_per_replica,
    const WorldTimes& times,
    Duration into_step);

}  // namespace sherd::sim
