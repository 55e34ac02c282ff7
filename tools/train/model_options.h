// SPDX-License-Identifier: Apache-2.0
//
// How the options of a run go together with those of the model whose weights it begins with. Pure
// functions. Thread rule: any thread.
#pragma once

#include <string>
#include "train/config.h"

namespace sherd::tools {

// Those of the model alone; the rest is as a TrainConfig is by itself.
TrainConfig model_options(const TrainConfig& config);

// `given` for a model that is described by `model`: sizes that `given` leaves open with 0 are taken
// from there. Throws Error that names option, both values and `where` for one of another model. What
// weights do not depend on may differ: dropout and, with rotary positions, their number and scaling.
TrainConfig with_sizes_of(
    TrainConfig given, const TrainConfig& model, const std::string& where);

}  // namespace sherd::tools
