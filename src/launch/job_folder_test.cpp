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
#include "base/host.h"
#include "launch/launcher_under_test.h"
#include "support/forked_process.h"
#include "support/scratch_folder.h"

namespace sherd::launch {
namespace {

using ::sherd::testing::ScratchFolder;
using test::ForkedProcess;
using test::receive_over;
using test::send_over;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string content_of(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::ptrdiff_t entries_of(const std::string& path) {
  return std::distance(
      std::filesystem::directory_iterator(path),
      std::filesystem::directory_iterator());
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

TEST(JobFolder, ATemporaryOneOfAKilledLauncherGoesWithTheNext) {
  const ScratchFolder parent;
  auto launcher = std::optional<ForkedProcess>([&](int channel) {
    const JobFolder folder = JobFolder::make_temporary(parent.path()).value();
    send_over(channel, folder.make_secret().ok());
    receive_over<bool>(channel);  // Until it is killed.
  });
  ASSERT_TRUE(receive_over<bool>(launcher->channel()));
  const JobFolder next = JobFolder::make_temporary(parent.path()).value();
  EXPECT_EQ(entries_of(parent.path()), 2);
  launcher.reset();
  const JobFolder last = JobFolder::make_temporary(parent.path()).value();
  EXPECT_EQ(entries_of(parent.path()), 2);
  EXPECT_TRUE(std::filesystem::exists(next.path()));
  EXPECT_TRUE(std::filesystem::exists(last.path()));
}

// With a lock file that nobody has locked.
std::string left_below(const std::string& parent, const std::string& holder) {
  const std::string path = parent + "/sherd-run-" + holder.substr(0, 9);
  std::filesystem::create_directory(path);
  std::ofstream(path + "/launcher.lock") << holder;
  return path;
}

TEST(JobFolder, OnlyTemporaryOnesOfThisHostAreRemoved) {
  const ScratchFolder parent;
  const std::string begins = left_below(parent.path(), "");
  const std::string elsewhere =
      left_below(parent.path(), "process 1 on another-host since 2026\n");
  const std::string linked = parent.path() + "/sherd-run-link";
  const ScratchFolder other;
  const std::string target = left_below(
      other.path(), str("process 1 on ", host_name(), " since 2026\n"));
  std::filesystem::create_directory_symlink(target, linked);
  const JobFolder named = JobFolder::open(parent.path() + "/run").value();
  const JobFolder next = JobFolder::make_temporary(parent.path()).value();
  for (const auto& kept :
       {begins, elsewhere, linked, target + "/launcher.lock", named.path()}) {
    EXPECT_TRUE(std::filesystem::exists(kept)) << kept;
  }
}

TEST(JobFolder, SaysWhichFolderCannotBeMade) {
  EXPECT_THAT(
      JobFolder::open("/proc/nowhere").status().message(),
      HasSubstr("cannot make the folder of the run, '/proc/nowhere': "));
}

}  // namespace
}  // namespace sherd::launch
