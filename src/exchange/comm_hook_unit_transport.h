// SPDX-License-Identifier: Apache-2.0
//
// A UnitTransport for replicas whose gradients a communication hook reduces: on a thread beside backward
// the hook gets each bucket of gradients in turn and leaves in it what all ranks agree on. Everything
// else is left to the inner UnitTransport. The buckets are whole flats. Thread rule: as UnitTransport.
#pragma once

#include <functional>
#include <memory>
#include "exchange/unit_transport.h"
#include "world/collectives.h"

namespace sherd::exchange {

// `flats`, input and result, are this rank's gradients of the unit: 1-D in the slot's dtype, by
// trainable flat, zero where there was none. The function divides by itself. It is called in the
// order in which reductions start, which is the same on all ranks. What it throws is a failure of the
// exchange.
using ReduceUnit = std::function<Status(
    UnitId unit,
    const std::vector<at::Tensor>& flats,
    world::Transport& transport)>;

std::unique_ptr<UnitTransport> make_comm_hook_unit_transport(
    const ModelSpec& model,
    std::unique_ptr<UnitTransport> inner,
    std::shared_ptr<world::Transport> transport,
    ReduceUnit reduce);

}  // namespace sherd::exchange
