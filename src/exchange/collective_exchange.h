// SPDX-License-Identifier: Apache-2.0
//
// CollectiveExchange moves units between processes by point-to-point messages straight between the
// flats, which allows unequal shards without padding. It has two transports, one for gathers and
// agreement and one for gradients, each with a thread that waits. At each collective step the ranks
// exchange their requests (collective_steps.h), so if a rank does something else, all of them get
// an error at once instead of hanging. A UnitTransport moves the bytes. Thread rule: see Exchange.
// Protocol: docs/design/exchange.md.
#pragma once

#include <memory>
#include "base/flight_recorder.h"
#include "exchange/exchange.h"
#include "exchange/unit_transport.h"
#include "world/transport.h"

namespace sherd::exchange {

// Takes two transports over the same ranks, so that gathers and gradients do not wait for each
// other. Without a `make_unit_transport`, bytes move by messages.
std::unique_ptr<Exchange> make_collective_exchange(
    std::shared_ptr<world::Transport> gather,
    std::shared_ptr<world::Transport> reduce,
    MakeUnitTransport make_unit_transport = nullptr,
    FlightLog log = {});

}  // namespace sherd::exchange
