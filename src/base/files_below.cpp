// SPDX-License-Identifier: Apache-2.0
#include "base/files_below.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include "base/check.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;

using Entry = fs::recursive_directory_iterator;

// Whether a link leads to a folder that it lies in: following it would never end.
bool leads_back(const Entry& link) {
  auto above = link->path();
  for (int depth = link.depth(); depth >= 0; --depth) {
    above = above.parent_path();
    if (fs::equivalent(above, link->path())) {
      return true;
    }
  }
  return false;
}

std::string problem_of(const Entry& entry) {
  std::error_code dangling;
  if (entry->is_regular_file(dangling)) {
    return "";
  }
  if (entry->is_directory(dangling)) {
    return entry->is_symlink() && leads_back(entry)
        ? "a link to a folder that contains it"
        : "";
  }
  return entry->exists(dangling) ? "neither a file nor a folder"
                                 : "a broken link";
}

}  // namespace

Result<std::vector<FileBelow>> files_below(
    const std::string& folder, HiddenFiles hidden) {
  std::vector<FileBelow> files;
  auto at = folder;
  try {
    Entry entry(folder, fs::directory_options::follow_directory_symlink);
    for (; entry != Entry(); ++entry) {
      const auto& path = entry->path();
      at = path.string();
      const bool is_hidden = path.filename().string().starts_with(".");
      if (is_hidden && hidden == HiddenFiles::kSkipped) {
        entry.disable_recursion_pending();
        continue;
      }
      auto problem = problem_of(entry);
      if (!problem.empty()) {
        entry.disable_recursion_pending();
      }
      if (problem.empty() ? entry->is_directory() : is_hidden) {
        continue;
      }
      files.push_back({.path = path.string(), .problem = std::move(problem)});
    }
  } catch (const fs::filesystem_error& error) {
    return Status(
        ErrorCode::kUnavailable,
        str(folder, ": expected a readable folder, found ",
            // Where the iterator goes into a folder, it does not say which.
            error.path1().empty() ? at : error.path1().string(), ": ",
            error.code().message()));
  }
  std::sort(files.begin(), files.end(), [](const auto& a, const auto& b) {
    return a.path < b.path;
  });
  return files;
}

}  // namespace sherd
