// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/flat_layout.h"
#include "plan/random_testing.h"

namespace sherd::plan {
namespace {

using Parameters = std::vector<FlatParameter>;

// The places where a cut is legal, by definition. Starts of padding are left out, because they
// separate the same parameters as its ends.
std::vector<std::int64_t> legal_places(
    const FlatLayout& layout, const Parameters& parameters) {
  std::vector<std::int64_t> places{layout.numel};
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    for (std::int64_t i = 0; i == 0 || i < parameters[p].numel;
         i += parameters[p].granularity) {
      places.push_back(layout.offsets[p] + i);
    }
  }
  std::sort(places.begin(), places.end());
  return places;
}

// The smallest possible largest shard, by trying each size.
std::int64_t best_largest_shard(
    const std::vector<std::int64_t>& places, int ranks) {
  for (std::int64_t size = 0;; ++size) {
    std::int64_t cut = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      cut = *std::prev(
          std::upper_bound(places.begin(), places.end(), cut + size));
    }
    if (cut == places.back()) {
      return size;
    }
  }
}

std::int64_t largest_step(const std::vector<std::int64_t>& places) {
  std::int64_t step = 0;
  for (std::size_t i = 1; i < places.size(); ++i) {
    step = std::max(step, places[i] - places[i - 1]);
  }
  return step;
}

struct Case {
  Parameters parameters;
  FlatLayoutOptions options;
};

Case random_case(TestRandom& random) {
  Case c;
  constexpr int kWorlds[] = {1, 2, 3, 4, 7};
  c.options.ranks = kWorlds[random.in(0, 4)];
  c.options.element_bytes = 1;
  c.options.parameter_alignment_bytes = random.in(1, random.in(1, 40));
  c.options.slice_alignment_bytes = random.in(1, 8);
  const std::int64_t count = random.in(1, 5);
  for (std::int64_t i = 0; i < count; ++i) {
    c.parameters.push_back(
        {"p", random.in(0, 120), random.in(1, random.in(1, 60))});
  }
  return c;
}

TEST(ShardCuts, EachCutIsTheLegalPlaceNearestToItsEvenShareOrAligned) {
  for_seeds(1000, [](TestRandom& random) {
    const Case c = random_case(random);
    const FlatLayout layout = plan_flat_layout(c.parameters, c.options);
    const auto places = legal_places(layout, c.parameters);
    for (int rank = 1; rank < c.options.ranks; ++rank) {
      const std::int64_t ideal = rank * layout.numel / c.options.ranks;
      const std::int64_t cut = layout.cuts[static_cast<std::size_t>(rank)];
      std::int64_t nearest = std::numeric_limits<std::int64_t>::max();
      for (const std::int64_t place : places) {
        nearest = std::min(nearest, std::abs(place - ideal));
      }
      // No cut lies in padding, so a cut there moves to its end.
      const std::int64_t slack = std::max(
          layout.numel / c.options.ranks / 16,
          c.options.parameter_alignment_bytes - 1);
      const std::int64_t distance = std::abs(cut - ideal);
      ASSERT_LE(distance, nearest + slack) << "rank " << rank;
    }
  });
}

TEST(ShardCuts, TheLargestShardIsBestToWithinOneBlock) {
  for_seeds(1000, [](TestRandom& random) {
    const Case c = random_case(random);
    const FlatLayout layout = plan_flat_layout(c.parameters, c.options);
    const auto places = legal_places(layout, c.parameters);
    std::int64_t largest = 0;
    for (int rank = 0; rank < c.options.ranks; ++rank) {
      largest = std::max(largest, layout.shard(rank).numel());
    }
    const std::int64_t block =
        std::max(largest_step(places), layout.numel / c.options.ranks / 8);
    ASSERT_LE(largest, best_largest_shard(places, c.options.ranks) + block);
  });
}

TEST(ShardCuts, FineGrainedFlatsAreEvenToOneElement) {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const FlatLayout layout = plan_flat_layout(
        Parameters{{"w", 1000}}, {.ranks = ranks, .slice_alignment_bytes = 4});
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_GE(layout.shard(rank).numel(), 1000 / ranks);
      EXPECT_LE(layout.shard(rank).numel(), 1000 / ranks + 1);
    }
  }
}

TEST(ShardCuts, LargeFlatsAreCutOnAlignedPlaces) {
  const FlatLayout layout =
      plan_flat_layout(Parameters{{"a", 100003}, {"b", 99999}}, {.ranks = 7});
  for (int rank = 0; rank < 7; ++rank) {
    EXPECT_EQ(layout.cuts[static_cast<std::size_t>(rank)] * 4 % 128, 0);
    EXPECT_NEAR(
        static_cast<double>(layout.shard(rank).numel()), 200002.0 / 7, 33);
  }
}

TEST(ShardCuts, TinyFlatsAreSpreadRatherThanAligned) {
  const FlatLayout layout =
      plan_flat_layout(Parameters{{"w", 12}}, {.ranks = 4});
  EXPECT_THAT(layout.cuts, ::testing::ElementsAre(0, 3, 6, 9, 12));
}

TEST(ShardCuts, AlignmentNeverSplitsABlock) {
  // Rows of 33 elements: only every 32nd row starts on 128 bytes.
  const FlatLayout layout =
      plan_flat_layout(Parameters{{"w", 33 * 1000, 33}}, {.ranks = 3});
  EXPECT_THAT(
      layout.cuts, ::testing::ElementsAre(0, 333 * 33, 667 * 33, 33000));
}

TEST(ShardCuts, OneBlockGoesToOneRankAndTheOthersAreEmpty) {
  const FlatLayout layout =
      plan_flat_layout(Parameters{{"w", 1000, 1000}}, {.ranks = 4});
  int owners = 0;
  for (int rank = 0; rank < 4; ++rank) {
    owners += layout.shard(rank).numel() == 1000 ? 1 : 0;
  }
  EXPECT_EQ(owners, 1);
}

}  // namespace
}  // namespace sherd::plan
