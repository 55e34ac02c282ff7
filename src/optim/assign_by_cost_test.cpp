// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "optim/cut_matrices.h"
#include "optim/newton_schulz.h"

namespace sherd::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::int64_t> loads_of(
    const std::vector<std::int64_t>& costs, int ranks) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  const auto owners = assign_by_cost(costs, ranks);
  EXPECT_EQ(owners.size(), costs.size());
  for (std::size_t i = 0; i < costs.size(); ++i) {
    loads.at(static_cast<std::size_t>(owners[i])) += costs[i];
  }
  return loads;
}

// The largest load of the best assignment, found by trying all.
std::int64_t best_makespan(const std::vector<std::int64_t>& costs, int ranks) {
  std::vector<std::size_t> owners(costs.size(), 0);
  auto best = std::accumulate(costs.begin(), costs.end(), std::int64_t{0});
  while (true) {
    std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
    for (std::size_t i = 0; i < costs.size(); ++i) {
      loads[owners[i]] += costs[i];
    }
    best = std::min(best, *std::max_element(loads.begin(), loads.end()));
    std::size_t i = 0;
    while (i < owners.size() && ++owners[i] == loads.size()) {
      owners[i++] = 0;
    }
    if (i == owners.size()) {
      return best;
    }
  }
}

TEST(NewtonSchulzCost, CountsThreeProductsAndNoOrientation) {
  EXPECT_EQ(newton_schulz_cost(2, 3), 2 * 2 * 3 + 2 * 2 * 2 + 2 * 2 * 3);
  EXPECT_EQ(newton_schulz_cost(3, 2), newton_schulz_cost(2, 3));
}

TEST(DealByCost, GivesTheDearestFirstToTheRankWithLeast) {
  EXPECT_THAT(assign_by_cost({1, 5, 3, 4}, 2), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(assign_by_cost({1, 1, 1, 1, 1}, 3), ElementsAre(0, 1, 2, 0, 1));
}

TEST(DealByCost, TakesNothingFewerItemsThanRanksAndFreeOnes) {
  EXPECT_THAT(assign_by_cost({}, 4), IsEmpty());
  EXPECT_THAT(assign_by_cost({7, 9}, 4), ElementsAre(1, 0));
  EXPECT_THAT(assign_by_cost({7, 9, 2}, 1), ElementsAre(0, 0, 0));
  EXPECT_THAT(assign_by_cost({0, 0}, 2), ElementsAre(0, 0));
}

TEST(DealByCost, IsWithinAThirdOfTheBestDeal) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 4);
    std::vector<std::int64_t> costs(1 + random() % 7);
    for (auto& cost : costs) {
      cost = 1 + static_cast<std::int64_t>(random() % 50);
    }
    const auto loads = loads_of(costs, ranks);
    EXPECT_LE(
        3 * *std::max_element(loads.begin(), loads.end()),
        4 * best_makespan(costs, ranks))
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace sherd::optim
