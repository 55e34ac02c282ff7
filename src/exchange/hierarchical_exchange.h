// SPDX-License-Identifier: Apache-2.0
//
// The exchange for a shard axis that spans several hosts. Ranks of a host share memory; between hosts
// each rank moves its part by messages, so that a host receives every byte once. Ranks agree as in
// CollectiveExchange. Replicated units move by messages alone. Thread rule: see Exchange.
// docs/design/hierarchical.md
#pragma once

#include <memory>
#include <string>
#include <sherd/world/world.h>
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

// Collective over the ranks of `gather`, under a `name` unique in this world.
// Any hosts, with any number of ranks each. Throws Error when they cannot be
// connected.
std::unique_ptr<Exchange> make_hierarchical_exchange(
    const World& world, const std::string& name, std::shared_ptr<world::Transport> gather);

}  // namespace sherd::exchange
