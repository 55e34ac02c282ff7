// SPDX-License-Identifier: Apache-2.0
//
// WorldCall is what a rank calls on a World. Ranks compare their calls before any of them sends
// more, because Gloo ends the process of a receiver that gets more bytes than it has room for.
// Thread rule: that of World.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>
#include "base/status.h"
#include "world/transport.h"

namespace sherd::world {

// Sent as it is, so it has no padding.
struct WorldCall {
  enum class Kind : std::int64_t {
    kBarrier,
    kAllGather,
    kAllGatherTexts,
    kBroadcast
  };
  Kind kind = Kind::kBarrier;
  // The number of numbers or tensors. For a text: its bytes, which may differ between ranks.
  std::int64_t count = 0;
  std::int64_t bytes = 0;     // Those of all tensors.
  std::uint64_t content = 0;  // A digest of their dtypes and sizes.
  // What is to be gathered, if it fits.
  std::array<std::byte, 96> values = {};
};

// "World::all_gather".
const char* name_of(WorldCall::Kind kind);

// Collective: every rank's call, by rank. An error on every rank if they do not match, which names
// the first one that differs from rank 0's.
Result<std::vector<WorldCall>> gather_calls(
    Transport& transport, const WorldCall& mine);

}  // namespace sherd::world
