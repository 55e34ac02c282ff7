// SPDX-License-Identifier: Apache-2.0
//
// Transport over a world::Communicator, that is over c10d. Thread rule: see Transport.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <sherd/world/world.h>
#include "exchange/transport.h"

namespace sherd::exchange {

// Collective over `ranks` (world ranks, ascending), connected under `name`,
// unique in this world. Waits have the world's deadline unless another one is
// given. Throws Error when they cannot be connected.
std::unique_ptr<Transport> make_c10d_transport(
    const World& world,
    const std::string& name,
    std::vector<int> ranks,
    std::optional<std::chrono::milliseconds> deadline = std::nullopt);

}  // namespace sherd::exchange
