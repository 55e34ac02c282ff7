// SPDX-License-Identifier: Apache-2.0
//
// The weights of a ModelSource, read into a model. Thread rule: one thread.
#pragma once

#include <sherd/optim/named_parameters.h>
#include <sherd/world/world.h>
#include "generate/model_source.h"

namespace sherd::tools {

// Collective. Each rank reads only its own slices of the parameters, and publishes them. Throws
// Error on every rank if a file is missing or damaged, or if the weights are not exactly those of
// the model.
void load_weights(
    const World& world,
    const ModelSource& source,
    const NamedParameters& parameters);

}  // namespace sherd::tools
