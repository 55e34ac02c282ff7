// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <numeric>
#include <set>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::data {
namespace {

std::vector<std::int64_t> order(std::int64_t size, std::uint64_t key) {
  const Permutation permutation(size, key);
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < size; ++i) {
    result.push_back(permutation.at(i));
  }
  return result;
}

TEST(Permutation, TakesEachElementOnceForEverySize) {
  for (std::int64_t size = 1; size <= 300; ++size) {
    const auto found = order(size, static_cast<std::uint64_t>(size) * 7);
    const std::set<std::int64_t> distinct(found.begin(), found.end());
    ASSERT_EQ(static_cast<std::int64_t>(distinct.size()), size);
    ASSERT_EQ(*distinct.begin(), 0);
    ASSERT_EQ(*distinct.rbegin(), size - 1);
  }
}

TEST(Permutation, KeysGiveUnrelatedOrders) {
  const auto a = order(1000, 1);
  const auto b = order(1000, 2);
  std::vector<std::int64_t> ascending(1000);
  std::iota(ascending.begin(), ascending.end(), 0);
  const auto fixed_points = [](const auto& x, const auto& y) {
    int count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      count += x[i] == y[i] ? 1 : 0;
    }
    return count;
  };
  // One is expected by chance; ten would be wrong with odds of 1e7 to 1.
  EXPECT_LT(fixed_points(a, b), 10);
  EXPECT_LT(fixed_points(a, ascending), 10);
  EXPECT_EQ(a, order(1000, 1));
}

TEST(Permutation, NeighboursLandAllOverTheRange) {
  // Counts in which tenth of the range the images of the first tenth lie: each gets its share.
  // Binomial(5000, 0.1): 500 +- 21; six deviations are allowed.
  const Permutation permutation(50'000, 3);
  std::vector<int> tenths(10);
  for (std::int64_t i = 0; i < 5000; ++i) {
    ++tenths[static_cast<std::size_t>(permutation.at(i) / 5000)];
  }
  for (const int count : tenths) {
    EXPECT_NEAR(count, 500, 128);
  }
}

TEST(Permutation, OrdersAreTheSameOnEveryMachine) {
  EXPECT_EQ(order(8, 42), (std::vector<std::int64_t>{5, 0, 7, 3, 6, 4, 1, 2}));
}

}  // namespace
}  // namespace sherd::data
