// SPDX-License-Identifier: Apache-2.0
//
// --init-from: a run that begins with the weights of a checkpoint or of a Hugging Face model, at
// step 0 and on any data. Thread rule: any thread.
#pragma once

#include <string>
#include "generate/model_source.h"
#include "train/config.h"

namespace sherd::tools {

// What --init-from names. A checkpoint that another program than `sherd train` has made says nothing
// of its model, so that `config`, what the user has said, stands for it. Throws Error when there is
// none.
ModelSource initial_model(const TrainConfig& config);

}  // namespace sherd::tools
