// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <sys/stat.h>
#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
        ("sherd_mapped_file_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~MappedFileTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }

  std::filesystem::path folder_;
};

int mappings_of(const std::string& path) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find(path) != std::string::npos ? 1 : 0;
  }
  return count;
}

TEST_F(MappedFileTest, ShowsTheBytesAndUnmapsThem) {
  const std::string path = file("a", std::string("ab\0c", 4));
  {
    const MappedFile mapped = MappedFile::open(path).value();
    EXPECT_EQ(mapped.bytes(), std::string_view("ab\0c", 4));
    EXPECT_EQ(mappings_of(path), 1);
  }
  EXPECT_EQ(mappings_of(path), 0);
}

TEST_F(MappedFileTest, MoveAssignmentClosesTheOldMapping) {
  const std::string a = file("a", "first");
  const std::string b = file("b", "second");
  MappedFile target = MappedFile::open(a).value();
  MappedFile source = MappedFile::open(b).value();

  target = std::move(source);

  EXPECT_EQ(target.bytes(), "second");
  EXPECT_EQ(mappings_of(a), 0);
  EXPECT_EQ(mappings_of(b), 1);
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  EXPECT_TRUE(MappedFile::open(file("empty", "")).value().bytes().empty());
}

TEST_F(MappedFileTest, FailuresNameThePathAndTheReason) {
  const std::string missing = folder_ / "missing";
  const auto absent = MappedFile::open(missing);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(absent.status().message(), HasSubstr(missing));
  EXPECT_THAT(absent.status().message(), HasSubstr("No such file"));

  EXPECT_THAT(
      MappedFile::open(folder_).status().message(), HasSubstr("a folder"));

  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(
      MappedFile::open(pipe).status().message(), HasSubstr("device or pipe"));
}

}  // namespace
}  // namespace sherd
