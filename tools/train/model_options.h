// SPDX-License-Identifier: Apache-2.0
//
// How the options of a run are combined with those of the model whose weights it begins with. Pure
// functions. Thread rule: any thread.
#pragma once

#include <string>
#include "train/config.h"

namespace sherd::tools {

// Only the options of the model; everything else has the defaults of TrainConfig.
TrainConfig model_options(const TrainConfig& config);

// `given` for a model that is described by `model`: sizes that are 0 in `given` are taken from
// `model`. Throws Error that names option, both values and `where` if it is another model. Options
// on which weights do not depend may differ: dropout and, with rotary positions, their number and
// scaling.
TrainConfig with_sizes_of(
    TrainConfig given, const TrainConfig& model, const std::string& where);

// For a run that goes on with the model of a checkpoint. Throws Error like with_sizes_of() if it
// would train another model from there: only dropout may differ.
void expect_same_model(
    const TrainConfig& given,
    const TrainConfig& model,
    const std::string& where);

}  // namespace sherd::tools
