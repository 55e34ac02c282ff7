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

// Collective over `ranks` (world ranks, ascending, this one included), under a
// `name` unique in this world: a segment of zeros, as shm::join_segment().
// kFailedPrecondition when they are not all on this host.
Result<shm::HostSegment> share_memory(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const shm::SegmentOptions& segment);

}  // namespace sherd::world
