// SPDX-License-Identifier: Apache-2.0
//
// Ranks of several hosts: each host has one place for a whole unit, into which
// every byte from elsewhere is received once, straight from the link; gradients
// are summed inside a host before they leave it. Shards are private to ranks.
// Thread rule: as Carrier. docs/design/hierarchical.md
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <sherd/comm/world.h>
#include "exchange/carrier.h"

namespace sherd::exchange {

// Collective over the links' ranks, under a `name` unique in this world.
// `hosts`: those ranks by host (comm/hosts.h). Fails on every rank when the
// memory cannot be had on one of the hosts.
Result<std::unique_ptr<Carrier>> make_host_carrier(
    const World& world,
    const std::string& name,
    const std::vector<std::vector<int>>& hosts,
    const ModelSpec& model,
    const std::shared_ptr<Link>& gather,
    const std::shared_ptr<Link>& reduce);

}  // namespace sherd::exchange
