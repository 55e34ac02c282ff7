// SPDX-License-Identifier: Apache-2.0
//
// The weights of a ModelSource, read into a model that is there, or into a new one, ready for use:
// whole on a single rank, sharded over the ranks of a job. Thread rule: one thread.
#pragma once

#include <memory>
#include <optional>
#include <c10/core/ScalarType.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/language_model.h>
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

// Throws Error if the checkpoint's model section has other names or shapes than the model of the
// source. Compares names and shapes only, and reads no weights.
void expect_tensors_of(
    const ModelSource& source, const CheckpointContent& content);

struct LoadedModel {
  std::shared_ptr<models::LanguageModel> model =
      nullptr;  // In evaluation mode.
  // Set on several ranks, which must then make every call of the model together. Keep it while the
  // model is used, and close it before the world.
  std::optional<FullyShardedDataParallel> fsdp = std::nullopt;
};

// Collective. Each rank reads only its own shards. Throws Error on every rank if a file is missing
// or damaged, or if its tensors are not those of the model.
LoadedModel load_model(
    const World& world, const ModelSource& source, at::ScalarType dtype);

}  // namespace sherd::tools
