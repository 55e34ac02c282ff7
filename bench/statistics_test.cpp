// SPDX-License-Identifier: Apache-2.0
#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(Statistics, QuantilesInterpolateBetweenNeighbours) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.0), 1);
  EXPECT_EQ(quantile({3, 1, 2}, 1.0), 3);
  EXPECT_EQ(quantile({3, 1, 2, 4}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({10, 20}, 0.9), 19);
  EXPECT_EQ(median({7}), 7);
}

// From the binomial table: P(X <= k - 1) <= 0.025 < P(X <= k).
TEST(Statistics, TheIntervalLiesBetweenTheTabulatedOrderStatistics) {
  struct Row {
    int values;
    int order;  // The interval is from this smallest to this largest.
  };
  for (const auto& row :
       {Row{6, 1}, Row{8, 1}, Row{9, 2}, Row{15, 4}, Row{20, 6}, Row{40, 14}}) {
    std::vector<double> values;
    for (int i = row.values; i > 0; --i) {
      values.push_back(i);
    }
    const auto found = estimate_median(values);
    EXPECT_EQ(found.low, row.order) << row.values;
    EXPECT_EQ(found.high, row.values + 1 - row.order) << row.values;
    EXPECT_EQ(found.median, (row.values + 1) / 2.0) << row.values;
  }
}

TEST(Statistics, FewerThanSixValuesLeaveTheIntervalOpen) {
  const auto found = estimate_median({5, 1, 4, 2, 3});
  EXPECT_EQ(found.median, 3);
  EXPECT_TRUE(std::isinf(found.low) && found.low < 0);
  EXPECT_TRUE(std::isinf(found.high) && found.high > 0);
  EXPECT_TRUE(std::isinf(found.width()));
}

TEST(Statistics, TheIntervalCoversTheMedianOfASkewedDistribution) {
  constexpr int kExperiments = 4000;
  constexpr std::uint64_t kSeed = 11;
  std::mt19937_64 random(kSeed);
  std::exponential_distribution<double> draw(1.0);
  int covered = 0;
  for (int i = 0; i < kExperiments; ++i) {
    std::vector<double> values(15);
    std::generate(values.begin(), values.end(), [&] { return draw(random); });
    const auto found = estimate_median(values);
    covered += found.low <= std::log(2.0) && std::log(2.0) <= found.high;
  }
  // 0.9648 by the binomial distribution; 5 standard deviations are 0.015.
  EXPECT_NEAR(covered / double{kExperiments}, 0.9648, 0.015)
      << "seed " << kSeed;
}

TEST(Statistics, LargeSamplesNeedNoSmallProbabilities) {
  std::vector<double> values(3001);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(i);
  }
  const auto found = estimate_median(values);
  EXPECT_EQ(found.median, 1500);
  // 1.96 standard deviations of a fair coin: 53.7.
  EXPECT_NEAR(found.low, 1500 - 53.7, 2);
  EXPECT_NEAR(found.high, 1500 + 53.7, 2);
}

TEST(Statistics, RatiosAreTakenRoundByRound) {
  EXPECT_THAT(ratios({2, 9}, {1, 3}), ElementsAre(2, 3));
}

TEST(Statistics, OrdersArePermutationsThatChangeFromRoundToRound) {
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t round = 0; round < 200; ++round) {
    auto order = order_of_round(4, round);
    EXPECT_EQ(order, order_of_round(4, round));
    seen.insert(order);
    std::sort(order.begin(), order.end());
    EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  }
  EXPECT_EQ(seen.size(), 24U);  // All there are.
}

constexpr StopLimits kLimits{
    .interval_width = 0.02, .rounds_max = 30, .minutes_max = 10};

TEST(WhyStop, TheWidestIntervalDecides) {
  const MedianEstimate narrow{.median = 2.0, .low = 1.99, .high = 2.02};
  const MedianEstimate wide{.median = 2.0, .low = 1.97, .high = 2.02};
  EXPECT_THAT(stop_reason({narrow, wide}, 9, 60, kLimits), IsEmpty());
  EXPECT_THAT(
      stop_reason({narrow, narrow}, 9, 60, kLimits), HasSubstr("within 0.02"));
}

TEST(WhyStop, LimitsEndItWhateverTheIntervals) {
  const auto open = estimate_median({1, 2});
  EXPECT_THAT(stop_reason({open}, 29, 599, kLimits), IsEmpty());
  EXPECT_THAT(stop_reason({open}, 30, 599, kLimits), HasSubstr("30 rounds"));
  EXPECT_THAT(stop_reason({open}, 29, 600, kLimits), HasSubstr("10 minutes"));
}

}  // namespace
}  // namespace sherd::bench
