// SPDX-License-Identifier: Apache-2.0
//
// Which ranks share a host, according to the records of the rendezvous: host name, boot id, and
// what tests invent. Thread rule: any thread.
#pragma once

#include <vector>
#include <sherd/world/world.h>

namespace sherd::world {

// Groups `ranks` (world ranks, ascending) by host: hosts are in the order of their first rank, and
// the ranks of each host ascend. Equal on every rank.
std::vector<std::vector<int>> ranks_by_host(
    const World& world, const std::vector<int>& ranks);

}  // namespace sherd::world
