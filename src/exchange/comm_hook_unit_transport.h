// SPDX-License-Identifier: Apache-2.0
//
// A unit_transport whose reductions are somebody else's: a function gets each bucket of
// gradients in turn, on a thread beside backward, and leaves in it what all ranks
// agree on. Everything else is the inner unit_transport's. For replicas, whose sharded
// gradients are whole flats. Thread rule: as UnitTransport.
#pragma once

#include <functional>
#include <memory>
#include "exchange/unit_transport.h"
#include "world/collectives.h"

namespace sherd::exchange {

// `flats` are this rank's gradients of the unit, 1-D in the slot's dtype, by
// trainable flat, zero where it had none: input and result. It divides by
// itself. Ranks are called in the order in which they start reductions, the same
// on all. What it throws is a failure of the exchange.
using ReduceUnit = std::function<Status(
    UnitId unit, const std::vector<at::Tensor>& flats, world::Transport& transport)>;

std::unique_ptr<UnitTransport> make_comm_hook_unit_transport(
    const ModelSpec& model,
    std::unique_ptr<UnitTransport> inner,
    std::shared_ptr<world::Transport> transport,
    ReduceUnit reduce);

}  // namespace sherd::exchange
