// SPDX-License-Identifier: Apache-2.0
//
// Link over a comm::Communicator, that is over c10d. Thread rule: see Link.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <sherd/comm/world.h>
#include "exchange/link.h"

namespace sherd::exchange {

// Collective over `ranks` (world ranks, ascending), connected under `name`,
// unique in this world. Throws Error when they cannot be connected.
std::unique_ptr<Link> make_comm_link(
    const World& world, const std::string& name, std::vector<int> ranks);

}  // namespace sherd::exchange
