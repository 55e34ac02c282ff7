// SPDX-License-Identifier: Apache-2.0
#include "launch/job_folder.h"

#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "launch/launcher_under_test.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(JobFolder, ASecondOneIsRefusedUntilTheFirstIsGone) {
  const ScratchFolder parent;
  const std::string path = parent.path() + "/a/run";
  auto held = std::optional(JobFolder::open(path).value());
  const Result<JobFolder> second = JobFolder::open(path);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(
      second.status().message(),
      AllOf(
          HasSubstr("'" + path + "'"),
          HasSubstr(str("process ", ::getpid(), " on ")), HasSubstr(" since 2"),
          HasSubstr(" UTC runs one")));
  held.reset();
  EXPECT_TRUE(JobFolder::open(path).ok());
}

TEST(JobFolder, ASecretIsForItsOwnerAloneAndNewEachTime) {
  const ScratchFolder parent;
  const JobFolder folder = JobFolder::open(parent.path()).value();
  const std::string path = folder.make_secret().value();
  const std::string first = content_of(path);
  EXPECT_EQ(first.size(), 65U);
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(folder.make_secret().value(), path);
  EXPECT_NE(content_of(path), first);
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
}

TEST(JobFolder, ATemporaryOneGoesWithItsOwner) {
  const ScratchFolder parent;
  std::string path;
  {
    const JobFolder folder = JobFolder::make_temporary(parent.path()).value();
    path = folder.path();
    EXPECT_TRUE(std::filesystem::exists(folder.make_secret().value()));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(JobFolder, SaysWhichFolderCannotBeMade) {
  EXPECT_THAT(
      JobFolder::open("/proc/nowhere").status().message(),
      HasSubstr("cannot make the folder of the run, '/proc/nowhere': "));
}

}  // namespace
}  // namespace sherd::launch
