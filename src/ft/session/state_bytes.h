// SPDX-License-Identifier: Apache-2.0
//
// All that makes a rank's state, as bytes for a counterpart of the same rank.
// Thread rule: as the state.
#pragma once

#include <string>
#include <string_view>
#include <sherd/ckpt/checkpoint.h>

namespace sherd::ft {

std::string state_bytes(const CheckpointState& state, int rank);

// Writes and publishes them. Throws Error, naming the first difference, for bytes
// of a state with other tensors; nothing is written then.
void restore_state(
    const CheckpointState& state, int rank, std::string_view bytes);

}  // namespace sherd::ft
