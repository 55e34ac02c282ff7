// SPDX-License-Identifier: Apache-2.0
//
// --init-from: a run that begins with the weights of a checkpoint, at step 0 and
// on any data. Thread rule: one thread.
#pragma once

#include <map>
#include <string>
#include "train/trainer.h"

namespace sherd::tools {

// The options of the model of the newest checkpoint in `path`, a checkpoint or a
// run, by name and as a user would write them; empty when `sherd train` has not
// made it. Throws Error when there is none.
std::map<std::string, std::string> model_options_of(const std::string& path);

// Collective. Throws Error unless the checkpoint that --init-from names has
// exactly the weights of the model.
void load_initial_weights(Trainer& trainer);

}  // namespace sherd::tools
