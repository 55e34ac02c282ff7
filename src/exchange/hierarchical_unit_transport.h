// SPDX-License-Identifier: Apache-2.0
//
// The UnitTransport for ranks of several hosts. Each host has one shared buffer for a whole unit, into
// which every byte from elsewhere is received once, straight from the transport; gradients are summed
// inside a host before they leave it. Shards are private to ranks. Thread rule: as UnitTransport.
// docs/design/hierarchical.md
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "exchange/unit_transport.h"

namespace sherd::exchange {

// Collective over the transports' ranks, under a `name` unique in this world.
// `hosts`: those ranks by host (world/hosts.h). Fails on every rank when the
// memory cannot be had on one of the hosts.
Result<std::unique_ptr<UnitTransport>> make_hierarchical_unit_transport(
    const World& world,
    const std::string& name,
    const std::vector<std::vector<int>>& hosts,
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce);

}  // namespace sherd::exchange
