// SPDX-License-Identifier: Apache-2.0
#include "train/initial_model.h"

#include <sherd/base/error.h>
#include "train/saved_model.h"

namespace sherd::tools {

ModelSource initial_model(const TrainConfig& config) {
  const auto& path = config.init_from;
  try {
    const auto checkpoint = checkpoint_at(path);
    const bool known = !checkpoint ||
        checkpoint_content(*checkpoint).values.contains("train.config");
    return known ? find_model(path)
                 : ModelSource{
                       .weights = *checkpoint,
                       .folder = *checkpoint,
                       .config = config,
                       .vocabulary = config.vocab};
  } catch (const Error& error) {
    throw Error(std::string("--init-from: ") + error.what());
  }
}

}  // namespace sherd::tools
