// SPDX-License-Identifier: Apache-2.0
//
// Where a model comes from that is to be used, not trained: a run or a checkpoint of `sherd train`,
// or a folder of Hugging Face's. Reads small files only, no weights. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "train/config.h"

namespace sherd::tools {

struct ModelSource {
  // The folder of the checkpoint, or Hugging Face's.
  std::string weights = {};
  std::vector<std::string> files = {};  // Hugging Face's; none: a checkpoint.
  std::string folder = {};  // Where the files of a tokenizer would lie.
  TrainConfig config = {};
  std::int64_t vocabulary = 0;
  std::vector<std::int64_t> stop_ids = {};  // After which a text ends.
};

// What `from` names: a run or its checkpoints, of which the newest is taken; one checkpoint; or a
// folder with config.json and model.safetensors, as transformers' save_pretrained() leaves it.
// Throws Error saying what was expected and found in it.
ModelSource find_model(const std::string& from);

// model.safetensors of a folder, or the files that model.safetensors.index.json lists. Throws Error
// for a folder without them and for an index that is none.
std::vector<std::string> hugging_face_weights(const std::string& folder);

}  // namespace sherd::tools
