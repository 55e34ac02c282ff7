// SPDX-License-Identifier: Apache-2.0
#include "plan/mesh_axes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::plan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(MeshAxes, ShardIndexIsInnermost) {
  const MeshShape shape{.replicate = 2, .shard = 3};
  EXPECT_EQ(rank_of(shape, {.replicate_index = 1, .shard_index = 2}), 5);
  EXPECT_EQ(
      place_of(shape, 4), (MeshPlace{.replicate_index = 1, .shard_index = 1}));
  EXPECT_THAT(ranks_along(shape, MeshAxis::kShard, 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(ranks_along(shape, MeshAxis::kReplicate, 4), ElementsAre(1, 4));
}

TEST(MeshAxes, PlacesAndRanksAreInverse) {
  for (const int replicate : {1, 2, 3, 4, 7}) {
    for (const int shard : {1, 2, 3, 4, 7}) {
      const MeshShape shape{.replicate = replicate, .shard = shard};
      check_mesh(shape, replicate * shard);
      for (int rank = 0; rank < replicate * shard; ++rank) {
        EXPECT_EQ(rank_of(shape, place_of(shape, rank)), rank);
      }
    }
  }
}

TEST(MeshAxes, GroupsOfAnAxisHoldEveryRankOnce) {
  for (const int replicate : {1, 2, 3, 4, 7}) {
    for (const int shard : {1, 2, 3, 4, 7}) {
      const MeshShape shape{.replicate = replicate, .shard = shard};
      for (const MeshAxis axis : {MeshAxis::kReplicate, MeshAxis::kShard}) {
        std::vector<int> seen(static_cast<std::size_t>(replicate * shard));
        for (const auto& group : groups_along(shape, axis)) {
          for (const int rank : group) {
            ++seen[static_cast<std::size_t>(rank)];
            EXPECT_EQ(ranks_along(shape, axis, rank), group);
          }
        }
        EXPECT_THAT(seen, ::testing::Each(1));
      }
    }
  }
}

TEST(MeshAxes, RanksOfTwoAxesMeetInExactlyOneRank) {
  const MeshShape shape{.replicate = 4, .shard = 7};
  for (int rank = 0; rank < 28; ++rank) {
    const auto shards = ranks_along(shape, MeshAxis::kShard, rank);
    int shared = 0;
    for (const int other : ranks_along(shape, MeshAxis::kReplicate, rank)) {
      for (const int shard : shards) {
        shared += other == shard ? 1 : 0;
      }
    }
    EXPECT_EQ(shared, 1);
    EXPECT_THAT(shards, Contains(rank));
  }
}

TEST(MeshAxes, FillsAWorldWithShardGroups) {
  EXPECT_EQ(mesh_of_world(12, 4), (MeshShape{.replicate = 3, .shard = 4}));
  EXPECT_THAT(
      message_of([] { (void)mesh_of_world(12, 5); }),
      HasSubstr("12 ranks cannot be divided into shard groups of 5; possible "
                "sizes: 1, 2, 3, 4, 6, 12"));
  EXPECT_THROW((void)mesh_of_world(12, 0), Error);
  EXPECT_THROW((void)mesh_of_world(0, 1), Error);
}

TEST(MeshAxes, RefusesShapesThatDoNotFitTheWorld) {
  EXPECT_THAT(
      message_of([] { check_mesh({.replicate = 2, .shard = 3}, 7); }),
      HasSubstr(
          "mesh replicate 2 x shard 3 has 6 places, but the world has 7"));
  EXPECT_THROW(check_mesh({.replicate = 0, .shard = 3}, 0), Error);
  EXPECT_THROW(check_mesh({.replicate = -2, .shard = -3}, 6), Error);
  // 2^16 x 2^16 is 2^32 places, not the 0 of an overflow.
  EXPECT_THROW(check_mesh({.replicate = 65536, .shard = 65536}, 0), Error);
}

TEST(MeshAxes, RefusesPlacesOutsideTheMesh) {
  const MeshShape shape{.replicate = 2, .shard = 3};
  EXPECT_THROW((void)place_of(shape, 6), Error);
  EXPECT_THROW((void)place_of(shape, -1), Error);
  EXPECT_THROW(
      (void)rank_of(shape, {.replicate_index = 0, .shard_index = 3}), Error);
  EXPECT_THROW((void)ranks_along(shape, MeshAxis::kShard, 6), Error);
}

}  // namespace
}  // namespace sherd::plan
