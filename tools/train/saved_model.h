// SPDX-License-Identifier: Apache-2.0
//
// Which checkpoint a path names, and what is in it. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <sherd/ckpt/checkpoint.h>

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

}  // namespace sherd::tools
