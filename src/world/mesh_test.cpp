// SPDX-License-Identifier: Apache-2.0
#include <sherd/world/world.h>

#include <algorithm>
#include <iterator>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "support/error_of.h"
#include "support/ranks.h"
#include "world/world_impl.h"

namespace sherd {
namespace {

using test::error_of;
using test::expect_all_ok;
using test::run_ranks;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A world without connections, of which a mesh needs none.
World unconnected(int rank, int size) {
  auto impl = std::make_shared<World::Impl>();
  impl->rank = rank;
  impl->size = size;
  return World(std::move(impl));
}

using RanksOfAxis = std::vector<int> (Mesh::*)() const;

// The ranks along that axis, by rank.
std::vector<std::vector<int>> groups_of(
    RanksOfAxis axis, int replicate, int shard) {
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < replicate * shard; ++rank) {
    const Mesh mesh(
        unconnected(rank, replicate * shard),
        {.replicate = replicate, .shard = shard});
    groups.push_back((mesh.*axis)());
  }
  return groups;
}

TEST(Mesh, ArrangesRanksOnTwoAxes) {
  expect_all_ok(run_ranks(4, [](World world) {
    const Mesh mesh(world, {.replicate = 2});
    const int r = world.rank();
    EXPECT_EQ(mesh.replicate_size(), 2);
    EXPECT_EQ(mesh.shard_size(), 2);
    EXPECT_EQ(mesh.replicate_index(), r / 2);
    EXPECT_EQ(mesh.shard_index(), r % 2);
    EXPECT_EQ(mesh.shard_ranks(), (std::vector<int>{r / 2 * 2, r / 2 * 2 + 1}));
    EXPECT_EQ(mesh.replicate_ranks(), (std::vector<int>{r % 2, r % 2 + 2}));

    const Mesh plain(world);
    EXPECT_EQ(plain.shard_ranks(), (std::vector<int>{0, 1, 2, 3}));
    EXPECT_EQ(plain.replicate_ranks(), (std::vector<int>{r}));
    EXPECT_THROW(Mesh(world, {.replicate = 3}), Error);
    EXPECT_THROW(Mesh(world, {.replicate = 2, .shard = 3}), Error);
    EXPECT_THROW(Mesh(world, {.replicate = 0}), Error);
    EXPECT_THROW(Mesh(world, {.replicate = -1, .shard = -4}), Error);
  }));
  EXPECT_EQ(Mesh(World::single()).shard_ranks(), std::vector<int>{0});
}

TEST(Mesh, ShardIndexIsInnermost) {
  const Mesh mesh(unconnected(4, 6), {.replicate = 2, .shard = 3});
  EXPECT_THAT(mesh.shard_ranks(), ElementsAre(3, 4, 5));
  EXPECT_THAT(mesh.replicate_ranks(), ElementsAre(1, 4));
}

TEST(Mesh, GroupsOfAnAxisHoldEveryRankOnce) {
  for (const int replicate : {1, 2, 3, 4, 7}) {
    for (const int shard : {1, 2, 3, 4, 7}) {
      for (const auto axis : {&Mesh::replicate_ranks, &Mesh::shard_ranks}) {
        const auto groups = groups_of(axis, replicate, shard);
        std::vector<int> times(groups.size());
        for (std::size_t rank = 0; rank < groups.size(); ++rank) {
          EXPECT_THAT(groups[rank], Contains(static_cast<int>(rank)));
          for (const int other : groups[rank]) {
            EXPECT_EQ(groups.at(static_cast<std::size_t>(other)), groups[rank]);
            ++times[static_cast<std::size_t>(other)];
          }
        }
        EXPECT_THAT(
            times, Each(axis == &Mesh::shard_ranks ? shard : replicate));
      }
    }
  }
}

TEST(Mesh, RanksOfTwoAxesMeetInExactlyOneRank) {
  const auto shards = groups_of(&Mesh::shard_ranks, 4, 7);
  const auto replicas = groups_of(&Mesh::replicate_ranks, 4, 7);
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    std::vector<int> shared;
    std::ranges::set_intersection(
        shards[rank], replicas[rank], std::back_inserter(shared));
    EXPECT_THAT(shared, ElementsAre(static_cast<int>(rank)));
  }
}

TEST(Mesh, RefusesShapesThatDoNotFitTheWorld) {
  const auto error_for = [](int replicate, int shard, int ranks) {
    return error_of([&] {
      const Mesh mesh(
          unconnected(0, ranks), {.replicate = replicate, .shard = shard});
    });
  };
  EXPECT_THAT(
      error_for(2, 3, 7),
      HasSubstr(
          "mesh replicate 2 x shard 3 has 6 places, but the world has 7"));
  EXPECT_THAT(error_for(0, 3, 0), HasSubstr("at least one replica"));
  EXPECT_THAT(error_for(-2, -3, 6), HasSubstr("at least one replica"));
  EXPECT_THAT(
      error_for(2, -3, 6), HasSubstr("at least 1 rank, got replicate 2"));
  EXPECT_THAT(
      error_for(3, 0, 2), HasSubstr("at least 1 rank, got replicate 3"));
  // 2^16 x 2^16 is 2^32 places, not the 0 of an overflow.
  EXPECT_THAT(error_for(65536, 65536, 0), HasSubstr("has 4294967296 places"));
}

}  // namespace
}  // namespace sherd
