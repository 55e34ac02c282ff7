// SPDX-License-Identifier: Apache-2.0
//
// The folder of a path, in a form that other paths can begin with. Thread rule: a pure function.
#pragma once

#include <filesystem>
#include <string>

namespace sherd {

// "." for a bare name, for which std::filesystem gives an empty path.
inline std::string parent_folder(const std::filesystem::path& path) {
  const auto folder = path.parent_path();
  return folder.empty() ? "." : folder.string();
}

}  // namespace sherd
