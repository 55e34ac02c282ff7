// SPDX-License-Identifier: Apache-2.0
//
// WorkingDirectory makes a folder the working directory of the process as long as it lives.
// Thread rule: one thread.
#pragma once

#include <filesystem>

namespace sherd::testing {

class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& folder)
      : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder);
  }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }
  WorkingDirectory(const WorkingDirectory&) = delete;
  WorkingDirectory& operator=(const WorkingDirectory&) = delete;

 private:
  const std::filesystem::path before_;
};

}  // namespace sherd::testing
