// SPDX-License-Identifier: Apache-2.0
//
// Which ranks share a host, according to the records of the rendezvous: host name, boot id, and
// what tests invent. Thread rule: any thread.
#pragma once

#include <optional>
#include <span>
#include <vector>
#include <sherd/world/world.h>
#include "world/rank_record.h"

namespace sherd::world {

// Groups `ranks` (world ranks, ascending) by host: hosts are in the order of their first rank, and
// the ranks of each host ascend. Containers of one machine that have process ids or networks of
// their own count as hosts, because memory is shared only with ranks whose end can be seen, and
// joined through sockets of the host. Equal on every rank.
std::vector<std::vector<int>> ranks_by_host(
    const World& world, const std::vector<int>& ranks);

// The first of `ranks` that is on another host than `own`. `records` are those of all ranks of the
// world.
std::optional<int> first_elsewhere(
    std::span<const RankRecord> records,
    int own,
    const std::vector<int>& ranks);

}  // namespace sherd::world
