// SPDX-License-Identifier: Apache-2.0
//
// The UnitTransport by messages alone: each rank sends its shard to every other rank, and its gradients
// to their owners. Whole units and gradients are private to a process. Thread rule: as UnitTransport.
#pragma once

#include <memory>
#include "exchange/unit_transport.h"

namespace sherd::exchange {

// Flats travel over the gather transport with this tag and the following ones; smaller tags are free
// for others.
inline constexpr int kFlatTag = 2;

std::unique_ptr<UnitTransport> make_message_unit_transport(
    const ModelSpec& model,
    const std::shared_ptr<world::Transport>& gather,
    const std::shared_ptr<world::Transport>& reduce);

}  // namespace sherd::exchange
