// SPDX-License-Identifier: Apache-2.0
//
// The model of a checkpoint that `sherd train` saved: where the checkpoint is that a path names,
// and how it describes its model. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <sherd/base/error.h>
#include <sherd/ckpt/checkpoint.h>
#include "base/parse_number.h"
#include "train/config.h"

namespace sherd::tools {

// The checkpoint that `path` names: one checkpoint, or the newest one of a folder of checkpoints or
// a run. Nothing if there is none.
inline std::optional<std::string> checkpoint_at(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path + "/checkpoint.json", ignored)) {
    return path;
  }
  auto newest = newest_checkpoint(path);
  return newest ? newest : newest_checkpoint(path + "/checkpoints");
}

inline bool has_section(
    const CheckpointContent& content, const std::string& name) {
  return std::any_of(
      content.tensors.begin(), content.tensors.end(),
      [&](const auto& tensor) { return tensor.section == name; });
}

struct SavedModel {
  TrainConfig config;
  std::int64_t vocabulary = 0;
};

// Throws Error for a checkpoint that `sherd train` has not made.
inline SavedModel saved_model(const CheckpointContent& content) {
  const auto value = [&](const char* name) -> const std::string& {
    const auto found = content.values.find(name);
    if (found == content.values.end()) {
      throw Error(
          content.folder + ": expected a checkpoint of sherd train, found no " +
          name + " in it");
    }
    return found->second;
  };
  const auto& vocabulary = value("train.vocabulary");
  const auto number = parse_number<std::int64_t>(vocabulary);
  if (!number) {
    throw Error(
        content.folder + ": expected train.vocabulary, a number, found '" +
        vocabulary + "'");
  }
  return {
      .config = make_config({}, content.folder, value("train.config")),
      .vocabulary = *number};
}

}  // namespace sherd::tools
