// SPDX-License-Identifier: Apache-2.0
#include "base/files_below.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::ScratchFolder;

// As "path below the folder" or "path: problem".
std::vector<std::string> found_in(
    const std::string& folder, HiddenFiles hidden) {
  std::vector<std::string> found;
  for (const auto& file : files_below(folder, hidden).value()) {
    found.push_back(
        file.path.substr(folder.size() + 1) +
        (file.problem.empty() ? "" : ": " + file.problem));
  }
  return found;
}

TEST(FilesBelow, AreInByteOrderAndHiddenOnesOnlyIfWanted) {
  const ScratchFolder folder;
  folder.file("b", "");
  folder.file("a/y", "");
  folder.file("a/B", "");
  folder.file(".git/config", "");
  EXPECT_THAT(
      found_in(folder.path(), HiddenFiles::kIncluded),
      ElementsAre(".git/config", "a/B", "a/y", "b"));
  EXPECT_THAT(
      found_in(folder.path(), HiddenFiles::kSkipped),
      ElementsAre("a/B", "a/y", "b"));
}

TEST(FilesBelow, LinksToFilesAndFoldersAreFollowed) {
  const ScratchFolder folder;
  folder.file("elsewhere/deep/b", "");
  const auto target = folder.file("elsewhere/a", "");
  std::filesystem::create_directory(folder.path() + "/data");
  std::filesystem::create_symlink(
      "../elsewhere", folder.path() + "/data/folder");
  std::filesystem::create_symlink(target, folder.path() + "/data/file");
  EXPECT_THAT(
      found_in(folder.path() + "/data", HiddenFiles::kIncluded),
      ElementsAre("file", "folder/a", "folder/deep/b"));
}

TEST(FilesBelow, WhatCannotBeReadIsNamed) {
  const ScratchFolder folder;
  std::filesystem::create_symlink("nowhere", folder.path() + "/broken");
  std::filesystem::create_symlink("nowhere", folder.path() + "/.#lock");
  std::filesystem::create_symlink("itself", folder.path() + "/itself");
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(
      found_in(folder.path(), HiddenFiles::kIncluded),
      ElementsAre(
          "broken: a broken link", "itself: a broken link",
          "pipe: neither a file nor a folder"));
}

// Each of the two folders contains a link to the other one.
TEST(FilesBelow, LinksThatLeadBackEnd) {
  const ScratchFolder folder;
  folder.file("a/file", "");
  std::filesystem::create_directory(folder.path() + "/b");
  std::filesystem::create_symlink("../b", folder.path() + "/a/to_b");
  std::filesystem::create_symlink("../a", folder.path() + "/b/to_a");
  std::filesystem::create_symlink("..", folder.path() + "/a/up");
  const std::string back = ": a link to a folder that contains it";
  EXPECT_THAT(
      found_in(folder.path() + "/a", HiddenFiles::kIncluded),
      ElementsAre(
          "file", "to_b/to_a" + back, "up/a/file", "up/a/to_b/to_a" + back,
          "up/a/up" + back, "up/b/to_a" + back));
}

// Here, because too many files are open.
TEST(FilesBelow, AFolderBelowThatCannotBeReadIsNamed) {
  const ScratchFolder folder;
  folder.file("above/inner/file", "");
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest = ::dup(STDERR_FILENO);
  ::close(lowest);
  const rlimit one_more = {static_cast<rlim_t>(lowest) + 1, before.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &one_more);
  const auto found = files_below(folder.path(), HiddenFiles::kSkipped);
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(
      found.status().message(),
      HasSubstr(
          "expected a readable folder, found " + folder.path() + "/above: "));
}

TEST(FilesBelow, AFolderThatCannotBeReadIsAFailure) {
  const ScratchFolder folder;
  const auto found =
      files_below(folder.path() + "/none", HiddenFiles::kSkipped);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(
      found.status().message(),
      HasSubstr("/none: expected a readable folder, found "));
}

}  // namespace
}  // namespace sherd
