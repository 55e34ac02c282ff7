// SPDX-License-Identifier: Apache-2.0
#include "c10d_shm/communicator/announcement.h"

#include <array>

#include <string>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "shm/counter.h"

namespace sherd::c10d_shm {
namespace {

std::string name(int rank) { return "rank " + std::to_string(rank); }

// Three ranks, each with `has` bytes for each other one.
class Announced : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    for (int r = 0; r < kRanks; ++r) {
      all_.set_text(r, "all_gather(Float)");
      for (auto& bytes : all_.offered(r)) {
        bytes = 8;
      }
      for (auto& bytes : all_.wanted(r)) {
        bytes = 8;
      }
    }
  }

  alignas(shm::kCacheLine) std::array<std::byte, 4096> memory_{};
  Announcements all_{memory_, kRanks};
};

TEST_F(Announced, WhatFitsIsNoMismatch) {
  EXPECT_EQ(all_.mismatch(name), "");
  EXPECT_EQ(all_.largest(), 8U);
}

TEST_F(Announced, AnotherCallIsNamed) {
  all_.set_text(2, "barrier()");
  EXPECT_EQ(
      all_.mismatch(name),
      "[c10d_shm] expected all_gather(Float), which rank 0 calls, found "
      "barrier() "
      "of rank 2");
}

TEST_F(Announced, BytesWithoutRoomAreNamed) {
  all_.offered(1)[2] = 12;
  EXPECT_EQ(
      all_.mismatch(name),
      "[c10d_shm] all_gather(Float): expected 8 bytes of rank 1 for rank 2, "
      "which "
      "has room for them, found 12");
  EXPECT_EQ(all_.largest(), 12U);
}

TEST_F(Announced, WhatARankHasForItselfIsItsOwnAffair) {
  all_.offered(1)[1] = 99;
  EXPECT_EQ(all_.mismatch(name), "");
  EXPECT_EQ(all_.largest(), 8U);
}

// If one rank has no digest, all ranks compare.
TEST_F(Announced, DigestsCountOnlyWhereAllHaveTheSame) {
  EXPECT_FALSE(all_.all_say_the_same());
  for (int r = 0; r < kRanks; ++r) {
    all_.digest(r) = 77;
  }
  EXPECT_TRUE(all_.all_say_the_same());
  EXPECT_EQ(all_.mismatch(name), "");  // Nothing was overwritten.
  for (const std::uint64_t other : {std::uint64_t{0}, std::uint64_t{78}}) {
    all_.digest(1) = other;
    EXPECT_FALSE(all_.all_say_the_same());
  }
}

TEST_F(Announced, LongTextsAreCut) {
  const std::string text(500, 'x');
  all_.set_text(0, text);
  EXPECT_EQ(all_.text(0), text.substr(0, Announcements::kTextMax));
  EXPECT_EQ(all_.offered(0)[0], 8U);  // It was not overwritten.
}

}  // namespace
}  // namespace sherd::c10d_shm
