// SPDX-License-Identifier: Apache-2.0
//
// --init-from: a run that begins with the weights of a checkpoint or of a Hugging Face model, at
// step 0 and with any data. Thread rule: any thread.
#pragma once

#include <string>
#include "generate/model_source.h"
#include "train/config.h"

namespace sherd::tools {

// What --init-from names. A checkpoint made by a program other than `sherd train` does not describe
// its model, so `config`, the user's options, does. Throws Error if there is none.
ModelSource initial_model(const TrainConfig& config);

}  // namespace sherd::tools
