// SPDX-License-Identifier: Apache-2.0
#include "plan/buckets.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "support/error_of.h"

namespace sherd::plan {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Buckets = std::vector<std::vector<int>>;

std::vector<BucketItem> of_bytes(const std::vector<std::int64_t>& bytes) {
  std::vector<BucketItem> items;
  for (const auto b : bytes) {
    items.push_back({.bytes = b});
  }
  return items;
}

std::vector<int> in_order(std::size_t count) {
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Buckets assign(
    const std::vector<BucketItem>& items,
    const std::vector<std::int64_t>& limits) {
  return assign_buckets(items, limits, in_order(items.size()));
}

TEST(Buckets, T52AreFullWhenTheyReachTheirLimit) {
  EXPECT_EQ(assign(of_bytes({4, 4, 4, 4}), {8}), (Buckets{{0, 1}, {2, 3}}));
  // It exceeds the limit by one item.
  EXPECT_EQ(assign(of_bytes({4, 100, 4}), {8}), (Buckets{{0, 1}, {2}}));
  EXPECT_EQ(assign(of_bytes({8, 8}), {8}), (Buckets{{0}, {1}}));
  EXPECT_EQ(assign(of_bytes({0, 0, 3}), {8}), (Buckets{{0, 1, 2}}));
  EXPECT_THAT(assign({}, {8}), IsEmpty());
}

TEST(Buckets, T52LimitsComeOneAfterAnotherAndTheLastStays) {
  EXPECT_EQ(
      assign(of_bytes({2, 2, 2, 2, 2, 2, 2, 2, 2}), {2, 4, 6}),
      (Buckets{{0}, {1, 2}, {3, 4, 5}, {6, 7, 8}}));
}

TEST(Buckets, T52KindsDoNotMixAndHaveLimitsOfTheirOwn) {
  const std::vector<BucketItem> items = {
      {.bytes = 2, .kind = 0}, {.bytes = 2, .kind = 1},
      {.bytes = 2, .kind = 0}, {.bytes = 2, .kind = 0},
      {.bytes = 2, .kind = 1}, {.bytes = 2, .kind = 1}};
  EXPECT_EQ(assign(items, {2, 4}), (Buckets{{0}, {1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(assign(items, {100}), (Buckets{{0, 2, 3}, {1, 4, 5}}));
}

TEST(Buckets, T52FollowTheOrder) {
  const std::vector<int> reversed = {3, 2, 1, 0};
  EXPECT_EQ(
      assign_buckets(
          of_bytes({4, 4, 4, 4}), std::vector<std::int64_t>{4, 8}, reversed),
      (Buckets{{3}, {2, 1}, {0}}));
}

// This holds for all items: each is in one bucket, in order, one kind per bucket, and no bucket but
// the last of its kind stays below its limit.
TEST(Buckets, T52HoldEveryItemOnceAndFillUp) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<BucketItem> items(static_cast<std::size_t>(below(30)));
    for (auto& item : items) {
      item = {.bytes = below(10), .kind = below(3)};
    }
    std::vector<std::int64_t> limits;
    for (int i = below(3); i >= 0; --i) {
      limits.push_back(1 + below(20));
    }
    auto order = in_order(items.size());
    std::shuffle(order.begin(), order.end(), random);
    const auto position = [&](int item) {
      return std::find(order.begin(), order.end(), item) - order.begin();
    };
    std::vector<int> seen;
    std::vector<std::size_t> made(3, 0);  // Full buckets by kind.
    for (const auto& bucket : assign_buckets(items, limits, order)) {
      const auto& first = items.at(static_cast<std::size_t>(bucket.at(0)));
      std::int64_t bytes = 0;
      for (const int item : bucket) {
        const auto& now = items[static_cast<std::size_t>(item)];
        EXPECT_EQ(now.kind, first.kind);
        bytes += now.bytes;
        seen.push_back(item);
      }
      EXPECT_TRUE(std::is_sorted(
          bucket.begin(), bucket.end(),
          [&](int a, int b) { return position(a) < position(b); }));
      auto& before = made[static_cast<std::size_t>(first.kind)];
      const auto limit = limits[std::min(before, limits.size() - 1)];
      const auto last = items[static_cast<std::size_t>(bucket.back())].bytes;
      EXPECT_LT(bytes - last, limit);
      // If a bucket is below the limit, no bucket of this kind follows.
      EXPECT_LE(before, items.size());
      before = bytes >= limit ? before + 1 : items.size() + 1;
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, in_order(items.size()));
  }
}

TEST(Buckets, RefuseWhatMakesNoSense) {
  const auto items = of_bytes({1, 1});
  const std::vector<std::int64_t> limits = {4};
  const auto refused = [&](const std::vector<int>& order) {
    return error_of([&] { (void)assign_buckets(items, limits, order); });
  };
  EXPECT_THAT(refused({0}), HasSubstr("an order of 2 items, found 1"));
  EXPECT_THAT(refused({0, 0}), HasSubstr("found item 0 twice"));
  EXPECT_THAT(refused({0, 2}), HasSubstr("found item 2"));
  EXPECT_THAT(error_of([&] { (void)assign(items, {}); }), HasSubstr("limits"));
  EXPECT_THAT(
      error_of([&] { (void)assign(items, {4, 0}); }), HasSubstr("positive"));
}

TEST(CommonOrder, IsTheOneThatAllRanksSaw) {
  const std::vector<std::vector<int>> seen(3, {2, 0, 1});
  EXPECT_THAT(common_order(3, seen), ElementsAre(2, 0, 1));
}

TEST(CommonOrder, IsByMeanPositionAndThenByItem) {
  EXPECT_THAT(
      common_order(3, std::vector<std::vector<int>>{{0, 1, 2}, {1, 2, 0}}),
      ElementsAre(1, 0, 2));
  EXPECT_THAT(
      common_order(2, std::vector<std::vector<int>>{{0, 1}, {1, 0}}),
      ElementsAre(0, 1));
}

TEST(CommonOrder, WhatARankDidNotSeeIsItsLast) {
  EXPECT_THAT(
      common_order(3, std::vector<std::vector<int>>{{2}, {2, 1}}),
      ElementsAre(2, 1, 0));
  EXPECT_THAT(
      common_order(2, std::vector<std::vector<int>>{{}, {}}),
      ElementsAre(0, 1));
  EXPECT_THAT(
      error_of(
          [] { (void)common_order(2, std::vector<std::vector<int>>{{1, 1}}); }),
      HasSubstr("found item 1 twice"));
}

}  // namespace
}  // namespace sherd::plan
