// SPDX-License-Identifier: Apache-2.0
//
// Memory that ranks of one host share, found through the world's store.
// Thread rule: one thread.
#pragma once

#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "base/status.h"
#include "shm/join.h"

namespace sherd::world {

// Collective over `ranks` (world ranks, ascending, including this one), with a `name` that is
// unique in this world: makes a segment of zeros, like shm::join_segment(). kFailedPrecondition if
// they are not all on this host.
Result<shm::HostSegment> share_memory(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const shm::SegmentOptions& segment);

}  // namespace sherd::world
