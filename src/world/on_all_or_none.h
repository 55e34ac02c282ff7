// SPDX-License-Identifier: Apache-2.0
//
// For faults that only one rank may find before ranks connect: the others would otherwise wait for
// it until the deadline. Thread rule: as World.
#pragma once

#include <functional>
#include <string>
#include <sherd/world/world.h>

namespace sherd::world {

// Collective: calls `action` on every rank. Throws what it throws here; if it succeeds here, throws
// an Error about the first rank on which it failed: "[ddp] rank 1 cannot replicate its module:
// ...", with the `part` "[ddp]" and the `purpose` "replicate its module".
void on_all_or_none(
    const World& world,
    const std::string& part,
    const std::string& purpose,
    const std::function<void()>& action);

}  // namespace sherd::world
