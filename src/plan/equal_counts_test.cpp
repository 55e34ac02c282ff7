// SPDX-License-Identifier: Apache-2.0
#include "plan/equal_counts.h"

#include <algorithm>
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "plan/arithmetic.h"
#include "plan/random_testing.h"

namespace sherd::plan {
namespace {

using Starts = std::vector<std::int64_t>;

struct Case {
  std::vector<Block> blocks;
  EqualCountsOptions options;
};

Case random_case(TestRandom& random) {
  Case result;
  constexpr int kWorlds[] = {1, 2, 3, 4, 7};
  result.options.ranks = kWorlds[random.in(0, 4)];
  result.options.start_alignment = random.in(1, 3);
  result.options.share_alignment =
      result.options.start_alignment * random.in(1, 2);
  const std::int64_t count = random.in(0, 4);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t numel = random.in(0, 14);
    result.blocks.push_back(
        {numel, random.in(1, std::max<std::int64_t>(numel, 1))});
  }
  return result;
}

// The definition: no multiple of the share strictly inside the block's range
// unless it is whole blocks away from the start.
bool legal(const Block& block, std::int64_t start, std::int64_t share) {
  for (std::int64_t x = start + 1; x < start + block.numel; ++x) {
    if (x % share == 0 && (x - start) % block.granularity != 0) {
      return false;
    }
  }
  return true;
}

// Every start of every parameter is tried.
bool brute_force_fits(
    const Case& c, std::int64_t share, std::size_t index, std::int64_t cursor) {
  if (index == c.blocks.size()) {
    return true;
  }
  const Block& block = c.blocks[index];
  const std::int64_t step = c.options.start_alignment;
  for (std::int64_t start = round_up(cursor, step);
       start + block.numel <= share * c.options.ranks; start += step) {
    if (legal(block, start, share) &&
        brute_force_fits(c, share, index + 1, start + block.numel)) {
      return true;
    }
  }
  return false;
}

std::int64_t brute_force_share(const Case& c) {
  const bool empty = std::all_of(
      c.blocks.begin(), c.blocks.end(),
      [](const Block& block) { return block.numel == 0; });
  std::int64_t share = empty ? 0 : c.options.share_alignment;
  while (!empty && !brute_force_fits(c, share, 0, 0)) {
    share += c.options.share_alignment;
  }
  return share;
}

TEST(EqualCounts, FitsExactlyWhenSomeChoiceOfStartsDoes) {
  for_seeds(400, [](TestRandom& random) {
    const Case c = random_case(random);
    const EqualCounts planner(c.blocks, c.options);
    const std::int64_t step = c.options.share_alignment;
    for (std::int64_t share = step; share <= 20; share += step) {
      ASSERT_EQ(
          planner.starts(share).has_value(), brute_force_fits(c, share, 0, 0))
          << "share " << share;
    }
  });
}

TEST(EqualCounts, FindsTheSmallestShareOfTinyCases) {
  for_seeds(400, [](TestRandom& random) {
    const Case c = random_case(random);
    const EqualCounts planner(c.blocks, c.options);
    const std::int64_t smallest = brute_force_share(c);
    ASSERT_EQ(planner.smallest_share(), smallest);
    ASSERT_GE(smallest, planner.lower_bound());
  });
}

TEST(EqualCounts, StartsAreLegalAlignedAndInOrder) {
  for_seeds(400, [](TestRandom& random) {
    const Case c = random_case(random);
    const EqualCounts planner(c.blocks, c.options);
    const std::int64_t share = planner.smallest_share();
    const Starts starts = planner.starts(share).value();
    std::int64_t end = 0;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      ASSERT_GE(starts[i], end);
      ASSERT_EQ(starts[i] % c.options.start_alignment, 0);
      ASSERT_TRUE(share == 0 || legal(c.blocks[i], starts[i], share));
      end = starts[i] + c.blocks[i].numel;
    }
    ASSERT_LE(end, share * c.options.ranks);
  });
}

TEST(EqualCounts, TheHeuristicIsLegalAndNearTheOptimum) {
  double worst = 1.0;
  for_seeds(400, [&](TestRandom& random) {
    Case c = random_case(random);
    const std::int64_t best = EqualCounts(c.blocks, c.options).smallest_share();
    c.options.exact_trials_max = 0;
    const EqualCounts heuristic(c.blocks, c.options);
    const std::int64_t found = heuristic.smallest_share();
    ASSERT_GE(found, best);
    ASSERT_TRUE(heuristic.starts(found).has_value());
    if (best > 0) {
      worst = std::max(
          worst, static_cast<double>(found) / static_cast<double>(best));
    }
  });
  RecordProperty("worst_ratio", std::to_string(worst));
  EXPECT_LE(worst, 2.0);
}

TEST(EqualCounts, BlocksOfOneElementCostNothing) {
  const EqualCounts planner(
      {{100, 1}, {1, 1}, {27, 1}}, {.ranks = 4, .share_alignment = 1});
  EXPECT_EQ(planner.smallest_share(), 32);
  EXPECT_THAT(planner.starts(32).value(), ::testing::ElementsAre(0, 100, 101));
}

TEST(EqualCounts, OnlyParametersOverTwoBoundariesForceTheirMultiple) {
  // The large one spans all 4 ranks in blocks of 6; the small one of 7 does not
  // force a multiple of 42.
  const EqualCounts planner({{96, 6}, {7, 7}}, {.ranks = 4});
  EXPECT_EQ(planner.smallest_share(), 30);
}

TEST(EqualCounts, AShareHoldsTheLargestBlock) {
  const EqualCounts planner({{50, 50}, {2, 1}}, {.ranks = 7});
  EXPECT_EQ(planner.lower_bound(), 50);
  EXPECT_EQ(planner.smallest_share(), 50);
}

// Section 1.4 of the notes on the newest systems: decoder layers over 64 ranks,
// blocks of 1 and 32 rows, padding as a part of the parameters.
TEST(EqualCounts, PaddingOfRealLayersMatchesTheComputedFigures) {
  const auto padding = [](std::vector<std::array<std::int64_t, 2>> shapes,
                          std::int64_t rows) {
    std::vector<Block> blocks;
    double used = 0;
    for (const auto& [height, width] : shapes) {
      const std::int64_t numel = height * width;
      blocks.push_back({numel, std::min(rows * width, numel)});
      used += static_cast<double>(numel);
    }
    const EqualCounts planner(
        blocks, {.ranks = 64, .start_alignment = 32, .share_alignment = 64});
    return 64.0 * static_cast<double>(planner.smallest_share()) / used - 1.0;
  };
  const std::vector<std::array<std::int64_t, 2>> llama70b{
      {8192, 8192},  {1024, 8192},  {1024, 8192}, {8192, 8192}, {28672, 8192},
      {28672, 8192}, {8192, 28672}, {8192, 1},    {8192, 1}};
  EXPECT_NEAR(padding(llama70b, 1), 0.004, 0.002);
  EXPECT_NEAR(padding(llama70b, 32), 0.098, 0.005);
  const std::vector<std::array<std::int64_t, 2>> qwen4b{
      {4096, 2560}, {1024, 2560}, {1024, 2560}, {2560, 4096},
      {9728, 2560}, {9728, 2560}, {2560, 9728}, {2560, 1},
      {2560, 1},    {128, 1},     {128, 1}};
  EXPECT_LE(padding(qwen4b, 1), 0.235);
  EXPECT_LE(padding(qwen4b, 32), 2.96);
}

TEST(EqualCounts, HugeSizesDoNotOverflow) {
  const std::int64_t huge = std::int64_t{1} << 55;
  const EqualCounts planner(
      {{huge, huge - 1}, {huge - 3, 1000003}},
      {.ranks = 2000000000, .start_alignment = 32, .share_alignment = 64});
  const std::int64_t share = planner.smallest_share();
  EXPECT_TRUE(planner.starts(share).has_value());
  EXPECT_LE(share, huge * 2);
}

}  // namespace
}  // namespace sherd::plan
