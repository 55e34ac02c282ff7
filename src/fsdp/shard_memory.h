// SPDX-License-Identifier: Apache-2.0
//
// The memory that an exchange keeps for life, as others are told of it: how much
// it is, and what an optimizer sees of what all ranks hold together. Thread rule:
// the caller's lock.
#pragma once

#include <cstdint>
#include <vector>
#include <sherd/optim/named_parameters.h>
#include "exchange/exchange.h"
#include "fsdp/model_units.h"
#include "fsdp/slices.h"

namespace sherd::fsdp {

// Of this rank's shards, their gradients and, in mixed precision, casts.
std::int64_t shard_bytes(const ModelUnits& model, exchange::Exchange& exchange);

// Whether every gradient lies where all ranks of the shard axis see it: false,
// too, where the exchange cannot do that.
bool gradients_are_shared(
    const ModelUnits& model, exchange::Exchange& exchange);

// Parameters without elements are left out.
std::vector<WholeParameter> whole_parameters(
    const ModelUnits& model,
    exchange::Exchange& exchange,
    const Slices& slices);

}  // namespace sherd::fsdp
