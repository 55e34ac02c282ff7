// SPDX-License-Identifier: Apache-2.0
//
// A rank's whole state as bytes, for its counterpart in another replica. Thread rule: as the state.
#pragma once

#include <string>
#include <string_view>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::ft {

std::string state_bytes(const CheckpointState& state, int rank);

// A digest of what these bytes would contain, without making them.
std::uint64_t state_digest(const CheckpointState& state, int rank);

// A digest of this rank's parts of the parameters. Other tensors of a state, such as running
// statistics, may differ between replicas; an error in the optimizer's state soon shows in the
// parameters.
std::uint64_t parameter_digest(const NamedParameters& parameters);

// Writes and publishes the state. Throws Error, naming the first difference, if the bytes are those
// of a state with other tensors; nothing is written then.
void restore_state(
    const CheckpointState& state, int rank, std::string_view bytes);

}  // namespace sherd::ft
