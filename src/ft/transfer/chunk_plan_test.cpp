// SPDX-License-Identifier: Apache-2.0
#include "ft/transfer/chunk_plan.h"

#include <random>
#include <string>
#include <gtest/gtest.h>

namespace sherd::ft::transfer {
namespace {

TEST(ChunkPlan, GivesEachChunkToWhoeverAsksNext) {
  ChunkPlan plan(3);
  EXPECT_EQ(plan.next(0), 0U);
  EXPECT_EQ(plan.next(1), 1U);
  EXPECT_EQ(plan.next(1), 2U);
  EXPECT_EQ(plan.next(0), std::nullopt);
  plan.came(2);
  plan.came(0);
  EXPECT_FALSE(plan.all_came());
  plan.came(1);
  EXPECT_TRUE(plan.all_came());
}

TEST(ChunkPlan, OfNothingIsAtItsEnd) {
  ChunkPlan plan(0);
  EXPECT_EQ(plan.next(0), std::nullopt);
  EXPECT_TRUE(plan.all_came());
}

TEST(ChunkPlan, AsksOthersForWhatALostDonorHadNotGiven) {
  ChunkPlan plan(4);
  for (const std::size_t donor : {0U, 1U, 0U}) {
    (void)plan.next(donor);
  }
  plan.came(0);
  plan.lost(0);
  EXPECT_EQ(plan.next(1), 2U);
  EXPECT_EQ(plan.next(1), 3U);
  EXPECT_EQ(plan.next(1), std::nullopt);
}

TEST(ChunkPlan, AsksAgainForWhatWasDamaged) {
  ChunkPlan plan(2);
  (void)plan.next(0);
  plan.damaged(0);
  EXPECT_EQ(plan.next(1), 0U);
  EXPECT_EQ(plan.next(0), 1U);
}

// This holds whatever fails in between, as long as one donor stays.
TEST(ChunkPlan, BringsEachChunkOnce) {
  const std::uint64_t seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kChunks = 200;
  ChunkPlan plan(kChunks);
  std::vector<std::set<std::uint64_t>> asked(3);
  std::set<std::uint64_t> there;
  while (!plan.all_came()) {
    const std::size_t donor = random() % asked.size();
    auto& its = asked[donor];
    const auto what = random() % 16;
    if (what == 0) {
      plan.lost(donor);
      its.clear();
    } else if (what < 8 && its.size() < 4) {
      if (const auto chunk = plan.next(donor)) {
        EXPECT_TRUE(its.insert(*chunk).second);
        EXPECT_FALSE(there.contains(*chunk));
      }
    } else if (!its.empty()) {
      const auto chunk = *its.begin();
      its.erase(chunk);
      if (what == 15) {
        plan.damaged(chunk);
      } else {
        plan.came(chunk);
        EXPECT_TRUE(there.insert(chunk).second);
      }
    }
  }
  EXPECT_EQ(there.size(), kChunks);
}

TEST(MajorityOf, IsWhatMostSayAndOfEquallyManyTheFirst) {
  using Said = std::vector<std::optional<std::string>>;
  EXPECT_EQ(majority_of(Said{"a"}), 0U);
  EXPECT_EQ(majority_of(Said{"b", "a", "a"}), 1U);
  EXPECT_EQ(majority_of(Said{"a", "b"}), 0U);
  EXPECT_EQ(majority_of(Said{std::nullopt, std::nullopt, "b", "a"}), 2U);
}

}  // namespace
}  // namespace sherd::ft::transfer
