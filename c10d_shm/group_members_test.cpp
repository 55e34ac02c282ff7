// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/group_members.h"

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::c10d_shm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const MemberHandle kOwn{.global_rank = 3, .id = 77};

TEST(GroupMembers, AHandleComesBackFromItsText) {
  for (const std::uint64_t number :
       {std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()}) {
    const MemberHandle handle{.global_rank = number, .id = number};
    const auto back = MemberHandle::from_text(handle.to_text());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back.value().global_rank, number);
    EXPECT_EQ(back.value().id, number);
  }
}

TEST(GroupMembers, WhatIsNoHandleIsQuoted) {
  for (const char* text :
       {"", "shm", "shm:", "shm:1", "shm:1:", "shm:1:2:3", "shm:1:x",
        "shm:-1:2", "shm: 1:2", "shm:01:2", "gloo:1:2", "shm:1:2 ",
        "shm:18446744073709551616:2"}) {
    const auto handle = MemberHandle::from_text(text);
    ASSERT_FALSE(handle.ok()) << text;
    EXPECT_EQ(handle.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(
        handle.status().message(), HasSubstr("\"" + std::string(text) + "\""));
  }
}

TEST(GroupMembers, APositionInAListIsARank) {
  const auto group =
      group_members({"shm:5:1", "shm:3:77"}, MemberOrder::kAsGiven, kOwn);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group.value().rank, 1);
  EXPECT_THAT(group.value().global_ranks, ElementsAre(5, 3));
}

// They are ordered as numbers, not as texts: 10 comes after 9.
TEST(GroupMembers, ASetIsInTheOrderOfTheJob) {
  const auto group = group_members(
      {"shm:10:1", "shm:3:77", "shm:9:4"}, MemberOrder::kByRank, kOwn);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group.value().rank, 0);
  EXPECT_THAT(group.value().global_ranks, ElementsAre(3, 9, 10));
}

// A rank that was restarted may come before the first one is forgotten.
TEST(GroupMembers, TwoMayHaveOneRankInTheJob) {
  const auto group =
      group_members({"shm:3:78", "shm:3:77"}, MemberOrder::kByRank, kOwn);
  ASSERT_TRUE(group.ok());
  EXPECT_EQ(group.value().rank, 0);
  EXPECT_THAT(group.value().global_ranks, ElementsAre(3, 3));
}

TEST(GroupMembers, MissingAndDoubleOnesAreNamed) {
  for (const auto& handles : std::vector<std::vector<std::string>>{
           {}, {"shm:3:76"}, {"shm:2:1", "shm:4:2"}}) {
    const auto group = group_members(handles, MemberOrder::kAsGiven, kOwn);
    ASSERT_FALSE(group.ok());
    EXPECT_THAT(group.status().message(), HasSubstr("shm:3:77"));
  }
  const auto twice = group_members(
      {"shm:2:1", "shm:3:77", "shm:2:1"}, MemberOrder::kAsGiven, kOwn);
  ASSERT_FALSE(twice.ok());
  EXPECT_THAT(twice.status().message(), HasSubstr("found shm:2:1 twice"));
}

}  // namespace
}  // namespace sherd::c10d_shm
