// SPDX-License-Identifier: Apache-2.0
#include "shm/available_memory.h"

#include <map>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::shm {
namespace {

using ::testing::HasSubstr;

ReadFile files(const std::map<std::string, std::string>& content) {
  return [content](const std::string& path) -> std::optional<std::string> {
    const auto found = content.find(path);
    return found == content.end() ? std::nullopt : std::optional(found->second);
  };
}

constexpr const char* kMeminfo =
    "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:    800 kB\n"
    "CommitLimit:     500 kB\nCommitted_AS:    450 kB\n";

TEST(AvailableMemory, IsWhatTheHostHasAvailable) {
  const auto left = available_memory(files({{"/proc/meminfo", kMeminfo}}));

  ASSERT_TRUE(left.has_value());
  EXPECT_EQ(left->bytes, 800U * 1024);
  EXPECT_THAT(left->source, HasSubstr("MemAvailable"));
}

TEST(AvailableMemory, CountsPromisesOnlyWhereTheHostDoesNotOvercommit) {
  const auto strict = available_memory(files(
      {{"/proc/meminfo", kMeminfo},
       {"/proc/sys/vm/overcommit_memory", "2\n"}}));
  const auto usual = available_memory(files(
      {{"/proc/meminfo", kMeminfo},
       {"/proc/sys/vm/overcommit_memory", "1\n"}}));

  EXPECT_EQ(strict->bytes, 50U * 1024);
  EXPECT_EQ(usual->bytes, 800U * 1024);
}

TEST(AvailableMemory, ALimitOfAnyGroupAboveBinds) {
  const std::string root = "/sys/fs/cgroup";
  const auto left = available_memory(files({
      {"/proc/meminfo", kMeminfo},
      {"/proc/self/cgroup", "0::/jobs/one\n"},
      {root + "/jobs/one/memory.max", "max\n"},
      {root + "/jobs/one/memory.current", "100\n"},
      {root + "/jobs/memory.max", "4000\n"},
      {root + "/jobs/memory.current", "3000\n"},
      {root + "/jobs/memory.stat", "anon 900\ninactive_file 2000\n"},
  }));

  EXPECT_EQ(left->bytes, 3000U);  // Cached files can be dropped.
  EXPECT_EQ(left->source, root + "/jobs/memory.max");
}

TEST(AvailableMemory, KnowsTheFirstVersionOfControlGroups) {
  const std::string root = "/sys/fs/cgroup/memory";
  const auto left = available_memory(files({
      {"/proc/meminfo", kMeminfo},
      {"/proc/self/cgroup", "4:cpu:/\n3:memory:/\n"},
      {root + "/memory.limit_in_bytes", "5000"},
      {root + "/memory.usage_in_bytes", "6000"},
  }));

  EXPECT_EQ(left->bytes, 0U);  // Over the limit it is 0, not 2^64.
}

// The kernel takes both back when a program wants memory, as MemAvailable says
// of the host. A corpus in its second epoch is on the active list.
TEST(AvailableMemory, CachedFilesMakeRoomAlsoWhenTheyWereReadTwice) {
  const std::string second = "/sys/fs/cgroup";
  const auto in_second = available_memory(files({
      {"/proc/self/cgroup", "0::/\n"},
      {second + "/memory.max", "4000\n"},
      {second + "/memory.current", "3900\n"},
      {second + "/memory.stat",
       "anon 400\nshmem 100\ninactive_anon 100\nactive_anon 400\n"
       "inactive_file 1000\nactive_file 2400\n"},
  }));
  const std::string first = "/sys/fs/cgroup/memory";
  const auto in_first = available_memory(files({
      {"/proc/self/cgroup", "3:memory:/\n"},
      {first + "/memory.limit_in_bytes", "4000\n"},
      {first + "/memory.usage_in_bytes", "3900\n"},
      {first + "/memory.stat",
       "inactive_file 1\nactive_file 2\n"
       "total_inactive_file 1000\ntotal_active_file 2400\n"},
  }));

  EXPECT_EQ(in_second->bytes, 3500U);
  EXPECT_EQ(in_first->bytes, 3500U);
}

TEST(AvailableMemory, IsUnknownWhereNoFileTells) {
  EXPECT_FALSE(available_memory(files({})).has_value());
  EXPECT_FALSE(
      available_memory(files({{"/proc/meminfo", "MemAvailable: lots"}}))
          .has_value());
  EXPECT_TRUE(
      check_available_memory(std::uint64_t{1} << 60U, std::nullopt).ok());
}

TEST(AvailableMemory, ARefusalNamesBothNumbersAndTheSource) {
  const AvailableMemory left{.bytes = 4096, .source = "the test"};

  EXPECT_TRUE(check_available_memory(4096, left).ok());
  const Status refused = check_available_memory(4097, left);

  EXPECT_EQ(refused.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("expected 4097 bytes"));
  EXPECT_THAT(refused.message(), HasSubstr("found 4096 available (the test)"));
}

TEST(AvailableMemory, ThisHostTells) {
  const auto left = available_memory(read_small_file);
  ASSERT_TRUE(left.has_value());
  EXPECT_GT(left->bytes, 0U);
}

}  // namespace
}  // namespace sherd::shm
