// SPDX-License-Identifier: Apache-2.0
//
// Each rank sends its shard to every other, and its gradients to their owners:
// whole units and gradients are private to a process.
// Thread rule: as Carrier.
#pragma once

#include <memory>
#include "exchange/carrier.h"

namespace sherd::exchange {

// Flats travel over the gather link with this tag and the following ones;
// smaller tags are free for others.
inline constexpr int kFlatTag = 2;

std::unique_ptr<Carrier> make_message_carrier(
    const ModelSpec& model,
    const std::shared_ptr<Link>& gather,
    const std::shared_ptr<Link>& reduce);

}  // namespace sherd::exchange
