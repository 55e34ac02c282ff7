// SPDX-License-Identifier: Apache-2.0
//
// An exchange that forwards every call to another one and records it: gathers, reductions, waits,
// ends of backwards, the first failure. PyTorch's profiler sees the same as ranges such as
// "sherd::unshard h.3". What happens on the threads of an exchange, that exchange records itself.
// Thread rule: as for Exchange. docs/design/recorder.md
#pragma once

#include <memory>
#include "base/flight_recorder.h"
#include "exchange/exchange.h"

namespace sherd::exchange {

std::unique_ptr<Exchange> make_recorded_exchange(
    std::unique_ptr<Exchange> recorded, FlightLog log);

// The names of the model's units, for a log.
std::vector<std::string> unit_names(const ModelSpec& model);

}  // namespace sherd::exchange
