// SPDX-License-Identifier: Apache-2.0
//
// Where a model comes from that is to be used, exported, or trained further: a run or a checkpoint
// of `sherd train`, or a folder in Hugging Face's format. Reads only small files, no weights.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>
#include <sherd/ckpt/checkpoint.h>
#include "train/config.h"

namespace sherd::tools {

// The sections of a checkpoint that have weights: those of the last step, and their moving average.
inline constexpr const char* kModelWeights = "model";
inline constexpr const char* kAveragedWeights = "ema";
// For the flag --weights.
inline constexpr const char* kWeightsHelp =
    "model: as the last step left them; ema: their moving average, which runs\n"
    "with --ema have";

// The value of a checkpoint that says that its model reads bytes.
inline constexpr const char* kTrainTokens = "train.tokens";
inline constexpr const char* kByteTokens = "bytes";

struct ModelSource {
  std::string from = {};  // As the user has named it.
  // The folder of the checkpoint, or of Hugging Face's files.
  std::string weights = {};
  // Hugging Face's files; empty for a checkpoint.
  // The section of the checkpoint.
  std::vector<std::string> files = {};
  std::string section = kModelWeights;
  std::string folder = {};  // Where the files of a tokenizer would be.
  TrainConfig config = {};
  std::int64_t vocabulary = 0;
  bool trained_on_bytes = false;
  std::vector<std::int64_t> stop_ids = {};  // The tokens that end a text.

  // Whether tokens are bytes if `folder` has no tokenizer. A larger vocabulary than that of bytes
  // may be padded.
  bool reads_bytes() const;
};

// The model that `from` names: a run or its checkpoints, of which the newest is taken; one
// checkpoint; or a folder with config.json and model.safetensors, as transformers'
// save_pretrained() writes it. `weights` chooses a section of a checkpoint. Throws Error saying
// what was expected and found.
ModelSource find_model(
    const std::string& from, const std::string& weights = kModelWeights);

// What --init-from names, with whose weights a run begins at step 0 and with any data. A checkpoint
// made by a program other than `sherd train` does not describe its model, so `config`, the user's
// options, does. Throws Error if there is none.
ModelSource find_initial_model(const TrainConfig& config);

// The checkpoint that `path` names: one checkpoint, or the newest one of a folder of checkpoints or
// a run. Nothing if there is none.
std::optional<std::string> checkpoint_at(const std::string& path);

// Calls read() with the checkpoint that `path` names or, if there is none, with `path`, so that the
// error says what it is. If read() fails because the run has removed this checkpoint meanwhile
// (--keep), it is called again with the newest one. Returns what it has read. Throws what read()
// throws.
std::string read_checkpoint(
    const std::string& path,
    const std::function<void(const std::string& checkpoint)>& read);

// The checkpoint that `path` names now; nothing if it is `before`, or if that still exists.
std::optional<std::string> replacement_of(
    const std::string& before, const std::string& path);

// Adds tokens that end a text to generation_config.json of a run or a model in `folder`.
void keep_stop_ids(
    const std::string& folder, const std::vector<std::int64_t>& ids);

bool has_section(const CheckpointContent& content, const std::string& name);

// For tokens in `path` made by the tokenizer with this digest (data::Tokenizer::digest(); 0 if not
// known). Throws Error that names both if the model has another tokenizer.
void expect_tokenizer_of(
    const ModelSource& source, const std::string& path, std::uint64_t digest);

}  // namespace sherd::tools
