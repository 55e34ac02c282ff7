// SPDX-License-Identifier: Apache-2.0
//
// All that makes a rank's state, as bytes for a counterpart of the same rank.
// Thread rule: as the state.
#pragma once

#include <string>
#include <string_view>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::ft {

std::string state_bytes(const CheckpointState& state, int rank);

// Of this rank's parts of the parameters. What else is in a state need not be the
// same in all replicas, running statistics for instance; what an optimizer has
// wrong is wrong in parameters soon.
std::uint64_t parameter_digest(const NamedParameters& parameters);

// Writes and publishes them. Throws Error, naming the first difference, for bytes
// of a state with other tensors; nothing is written then.
void restore_state(
    const CheckpointState& state, int rank, std::string_view bytes);

}  // namespace sherd::ft
