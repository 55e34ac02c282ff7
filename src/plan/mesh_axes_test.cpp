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
  EXPECT_THAT(ranks_along(shape, MeshAxis::kShard, 4), ElementsAre(3, 4, 5));
  EXPECT_THAT(ranks_along(shape, MeshAxis::kReplicate, 4), ElementsAre(1, 4));
}

TEST(MeshAxes, GroupsOfAnAxisHoldEveryRankOnce) {
  for (const int replicate : {1, 2, 3, 4, 7}) {
    for (const int shard : {1, 2, 3, 4, 7}) {
      const MeshShape shape{.replicate = replicate, .shard = shard};
      for (const MeshAxis axis : {MeshAxis::kReplicate, MeshAxis::kShard}) {
        check_mesh(shape, replicate * shard);
        std::vector<int> groups(static_cast<std::size_t>(replicate * shard));
        for (int rank = 0; rank < replicate * shard; ++rank) {
          const std::vector<int> group = ranks_along(shape, axis, rank);
          EXPECT_THAT(group, Contains(rank));
          for (const int other : group) {
            EXPECT_EQ(ranks_along(shape, axis, other), group);
            ++groups[static_cast<std::size_t>(other)];
          }
        }
        EXPECT_THAT(
            groups,
            ::testing::Each(axis == MeshAxis::kShard ? shard : replicate));
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
  EXPECT_THROW((void)ranks_along(shape, MeshAxis::kShard, -1), Error);
  EXPECT_THROW((void)ranks_along(shape, MeshAxis::kShard, 6), Error);
}

}  // namespace
}  // namespace sherd::plan
