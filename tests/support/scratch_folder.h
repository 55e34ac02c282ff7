// SPDX-License-Identifier: Apache-2.0
//
// ScratchFolder is an empty folder for one test, removed with everything in it when the test ends.
// Thread rule: one thread.
#pragma once

#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <gtest/gtest.h>

namespace sherd::testing {

class ScratchFolder {
 public:
  ScratchFolder() : ScratchFolder(::testing::TempDir(), "sherd_") {}
  // Its name begins with the prefix. Where there is no such parent, it is where the others are.
  ScratchFolder(
      const std::filesystem::path& parent, const std::string& prefix) {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    // Parallel test processes must not share a folder, hence the process id; nor must two folders
    // of one test.
    static int made = 0;
    std::string name = prefix + std::to_string(::getpid()) + "_" +
        std::to_string(++made) + "_" +
        (test != nullptr ? test->name() : "suite");
    std::ranges::replace(name, '/', '_');  // As in names of parameters.
    path_ = (std::filesystem::is_directory(parent)
                 ? parent
                 : std::filesystem::path(::testing::TempDir())) /
        name;
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path() const { return path_.string(); }

  // Writes a file below the folder and returns its path.
  std::string file(const std::string& name, std::string_view content) const {
    const auto path = path_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace sherd::testing
