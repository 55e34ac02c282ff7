// SPDX-License-Identifier: Apache-2.0
//
// Which ranks share a host, according to the records of the rendezvous (host name, boot id, and what
// tests invent), and the memory that they share, found through the world's store. Thread rule: one
// thread.
#pragma once

#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "base/status.h"
#include "shm/join.h"

namespace sherd::world {

// Groups `ranks` (world ranks, ascending) by host: hosts are in the order of their first rank, and
// the ranks of each host ascend. Containers of one machine that have process ids or networks of
// their own count as hosts, because memory is shared only with ranks whose end can be seen, and
// joined through sockets of the host. Equal on every rank. Callable from any thread.
std::vector<std::vector<int>> ranks_by_host(
    const World& world, const std::vector<int>& ranks);

// Collective over `ranks` (world ranks, ascending, including this one), with a `name` that is
// unique in this world: makes a segment of zeros, like shm::join_segment(). kFailedPrecondition if
// they are not all on this host.
Result<shm::HostSegment> share_memory(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    const shm::SegmentOptions& segment);

}  // namespace sherd::world
