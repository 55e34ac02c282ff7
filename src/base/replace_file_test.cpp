// SPDX-License-Identifier: Apache-2.0
#include "base/replace_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"

namespace sherd {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::ptrdiff_t files_in(const std::string& folder) {
  const std::filesystem::directory_iterator all(folder);
  return std::distance(begin(all), end(all));
}

TEST(ReplaceFile, ReplacesTheWholeContent) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a";
  EXPECT_TRUE(replace_file(path, std::string(100'000, 'x')).ok());
  EXPECT_EQ(content_of(path), std::string(100'000, 'x'));
  EXPECT_TRUE(replace_file(path, std::string("b\0c", 3)).ok());
  EXPECT_EQ(content_of(path), std::string("b\0c", 3));
  EXPECT_TRUE(replace_file(path, "").ok());
  EXPECT_EQ(content_of(path), "");
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(ReplaceFile, AFailureNamesThePathAndLeavesNothing) {
  const ScratchFolder folder;
  const auto none = folder.path() + "/none/a";
  const auto status = replace_file(none, "x");
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      status.message(),
      AllOf(StartsWith(none), HasSubstr("open failed: No such file")));
  const auto taken = folder.path() + "/taken";
  std::filesystem::create_directory(taken);
  EXPECT_THAT(
      replace_file(taken, "x").message(),
      AllOf(StartsWith(taken), HasSubstr("rename failed: Is a directory")));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(ReplaceFile, OfSeveralWritersOneWins) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a";
  {
    std::vector<std::jthread> writers;
    for (const char c : {'x', 'y', 'z'}) {
      writers.emplace_back([&path, c] {
        for (int i = 0; i < 20; ++i) {
          EXPECT_TRUE(replace_file(path, std::string(10'000, c)).ok());
        }
      });
    }
  }
  const auto content = content_of(path);
  ASSERT_EQ(content.size(), 10'000U);
  EXPECT_EQ(content, std::string(10'000, content[0]));
  EXPECT_EQ(files_in(folder.path()), 1);
}

TEST(RemoveDrafts, TakesWhatKilledWritersLeftAndNothingElse) {
  const ScratchFolder folder;
  const auto path = folder.path() + "/a";
  for (const std::string end :
       {"", ".7.new", ".4294967295.new", ".new", ".7.old", ".b.new", "b.7.new",
        ".7.new.new", ".7"}) {
    std::ofstream(path + end) << "x";
  }
  remove_drafts(path);
  EXPECT_FALSE(std::filesystem::exists(path + ".7.new"));
  EXPECT_FALSE(std::filesystem::exists(path + ".4294967295.new"));
  EXPECT_EQ(files_in(folder.path()), 7);
  remove_drafts(folder.path() + "/none/a");
}

}  // namespace
}  // namespace sherd
