// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <sys/stat.h>
#include <fstream>
#include <string>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/scratch_folder.h"

namespace sherd {
namespace {

using sherd::testing::ScratchFolder;
using ::testing::HasSubstr;

int mappings_of(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(path) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST(MappedFile, ShowsTheBytesAndUnmapsThem) {
  const ScratchFolder folder;
  const std::string path = folder.file("a", std::string("ab\0c", 4));
  {
    const MappedFile mapped = MappedFile::open(path).value();
    EXPECT_EQ(mapped.bytes(), std::string_view("ab\0c", 4));
    EXPECT_EQ(mappings_of(path), 1);
  }
  EXPECT_EQ(mappings_of(path), 0);
}

TEST(MappedFile, MoveAssignmentClosesTheOldMapping) {
  const ScratchFolder folder;
  const std::string a = folder.file("a", "first");
  const std::string b = folder.file("b", "second");
  MappedFile target = MappedFile::open(a).value();
  MappedFile source = MappedFile::open(b).value();

  target = std::move(source);

  EXPECT_EQ(target.bytes(), "second");
  EXPECT_EQ(mappings_of(a), 0);
  EXPECT_EQ(mappings_of(b), 1);
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
  const ScratchFolder folder;
  const auto path = folder.file("empty", "");
  EXPECT_TRUE(MappedFile::open(path).value().bytes().empty());
}

TEST(MappedFile, FailuresNameThePathAndTheReason) {
  const ScratchFolder folder;
  const std::string missing = folder.path() + "/missing";
  const auto absent = MappedFile::open(missing);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(absent.status().message(), HasSubstr(missing));
  EXPECT_THAT(absent.status().message(), HasSubstr("No such file"));

  EXPECT_THAT(
      MappedFile::open(folder.path()).status().message(),
      HasSubstr("a folder"));

  const std::string pipe = folder.path() + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(
      MappedFile::open(pipe).status().message(), HasSubstr("device or pipe"));
}

}  // namespace
}  // namespace sherd
