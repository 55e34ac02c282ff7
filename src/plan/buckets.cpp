// SPDX-License-Identifier: Apache-2.0
#include "plan/buckets.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace sherd::plan {
namespace {

struct OpenBucket {
  std::vector<int> items;
  std::int64_t bytes = 0;
  std::size_t first = 0;  // Position of the first item in the order.
  std::size_t limit = 0;  // Index of its limit.
};

void check_permutation(std::span<const int> order, std::size_t items) {
  std::vector<bool> seen(items, false);
  for (const int item : order) {
    SHERD_CHECK(
        item >= 0 && static_cast<std::size_t>(item) < items &&
            !seen[static_cast<std::size_t>(item)],
        "[plan] expected each of ", items, " items once, found item ", item,
        " twice or out of range");
    seen[static_cast<std::size_t>(item)] = true;
  }
}

}  // namespace

std::vector<std::vector<int>> assign_buckets(
    std::span<const BucketItem> items,
    std::span<const std::int64_t> limits,
    std::span<const int> order) {
  SHERD_CHECK(
      !limits.empty() && *std::min_element(limits.begin(), limits.end()) > 0,
      "[plan] expected limits of buckets, all of them positive");
  check_permutation(order, items.size());
  SHERD_CHECK(
      order.size() == items.size(), "[plan] expected an order of ",
      items.size(), " items, found ", order.size());
  std::vector<std::vector<int>> full;
  std::map<int, OpenBucket> open;  // By kind.
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto& item = items[static_cast<std::size_t>(order[i])];
    auto& bucket = open[item.kind];
    if (bucket.items.empty()) {
      bucket.first = i;
    }
    bucket.items.push_back(order[i]);
    bucket.bytes += item.bytes;
    if (bucket.bytes >= limits[bucket.limit]) {
      full.push_back(std::exchange(bucket.items, {}));
      bucket.bytes = 0;
      bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
    }
  }
  std::map<std::size_t, std::vector<int>> left;
  for (auto& [kind, bucket] : open) {
    if (!bucket.items.empty()) {
      left.emplace(bucket.first, std::move(bucket.items));
    }
  }
  for (auto& [first, bucket] : left) {
    full.push_back(std::move(bucket));
  }
  return full;
}

std::vector<int> common_order(
    int items, std::span<const std::vector<int>> order_by_rank) {
  const auto count = static_cast<std::size_t>(items);
  std::vector<std::size_t> sum(count, 0);  // Positions summed over ranks.
  for (const auto& order : order_by_rank) {
    check_permutation(order, count);
    std::vector<std::size_t> position(count, count);
    for (std::size_t i = 0; i < order.size(); ++i) {
      position[static_cast<std::size_t>(order[i])] = i;
    }
    for (std::size_t i = 0; i < count; ++i) {
      sum[i] += position[i];
    }
  }
  std::vector<int> result(count);
  std::iota(result.begin(), result.end(), 0);
  std::stable_sort(result.begin(), result.end(), [&](int a, int b) {
    return sum[static_cast<std::size_t>(a)] < sum[static_cast<std::size_t>(b)];
  });
  return result;
}

}  // namespace sherd::plan
