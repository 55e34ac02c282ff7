// SPDX-License-Identifier: Apache-2.0
//
// SharedMemoryExchange is an Exchange for ranks of one host, without messages: all map one segment,
// in which every unit lies whole, once. A rank's shard is its slice of the unit (or, if whole units
// have another dtype, a private shard that publish() casts into it), so nothing is gathered, and
// one rank may use units that others do not. Gradient slots lie in the segment, too; the owner of a
// slice sums it over all slots. Why it is safe to write in place: docs/design/shared_memory.md.
#pragma once

#include <memory>
#include <string>
#include <sherd/world/world.h>
#include "exchange/exchange.h"
#include "world/transport.h"

namespace sherd::exchange {

// Collective over the ranks of `control`, under a `name` that is unique in this world. open() fails
// if the ranks are not on one host. With `sum_thread`, gradients are summed on a thread of their own
// instead of in later calls of the caller; the result is the same.
std::unique_ptr<Exchange> make_shared_memory_exchange(
    const World& world,
    const std::string& name,
    std::shared_ptr<world::Transport> control,
    bool sum_thread = false,
    FlightLog log = {});

}  // namespace sherd::exchange
