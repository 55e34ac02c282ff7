// SPDX-License-Identifier: Apache-2.0
//
// Chooses the exchange for a group of ranks; the one place above the
// implementations that knows them.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <sherd/comm/world.h>
#include "exchange/exchange.h"

namespace sherd::exchange {

enum class Kind {
  kCollective,    // Messages over c10d.
  kSharedMemory,  // All ranks of the world on one host.
};

// Collective over `ranks` (world ranks, ascending), under a `name` unique in
// this world. A single rank needs no connection, hence no store. Throws Error
// when they cannot be connected.
std::unique_ptr<Exchange> make_exchange(
    const World& world,
    const std::string& name,
    const std::vector<int>& ranks,
    Kind kind = Kind::kCollective);

}  // namespace sherd::exchange
