// SPDX-License-Identifier: Apache-2.0
#include "models/attention.h"

#include <cmath>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include "models/testing.h"
#include "support/error_of.h"

namespace sherd::models {
namespace {

constexpr std::int64_t kWidth = 6;

AttentionInputs random_inputs(
    std::int64_t queries, std::int64_t positions, std::int64_t kv_heads) {
  torch::manual_seed(7);
  return {
      .queries = torch::randn({2, 4, queries, kWidth}, torch::kDouble),
      .keys = torch::randn({2, kv_heads, positions, kWidth}, torch::kDouble),
      .values = torch::randn({2, kv_heads, positions, kWidth}, torch::kDouble)};
}

// Softmax of the products; the positions that a query must not attend to are masked one by one.
torch::Tensor attended_by_hand(const AttentionInputs& in, std::int64_t window) {
  const auto shared = in.queries.size(1) / in.keys.size(1);
  const auto keys = in.keys.repeat_interleave(shared, 1);
  const auto values = in.values.repeat_interleave(shared, 1);
  const auto count = in.queries.size(2);
  const auto positions = keys.size(2);
  auto hidden = torch::zeros({count, positions}, torch::kBool);
  for (std::int64_t t = 0; t < count; ++t) {
    const auto own = positions - count + t;
    for (std::int64_t s = 0; s < positions; ++s) {
      hidden[t][s] = s > own || (window > 0 && s <= own - window);
    }
  }
  const auto scores = torch::matmul(in.queries, keys.transpose(-1, -2)) /
      std::sqrt(static_cast<double>(kWidth));
  return torch::matmul(softmax_by_hand(scores, hidden), values);
}

TEST(Attention, SeesItsOwnPositionAndThoseBeforeItWithinTheWindow) {
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    for (const std::int64_t queries : {1, 2, 5, 9}) {
      for (const std::int64_t window : {0, 1, 3, 9, 20}) {
        const auto inputs = random_inputs(queries, 9, kv_heads);
        EXPECT_TRUE(torch::allclose(
            attend(inputs, {.window = window}),
            attended_by_hand(inputs, window), 1e-10, 1e-12))
            << kv_heads << " heads of keys, " << queries << " queries, window "
            << window;
      }
    }
  }
}

TEST(Attention, ACacheGivesBackAllThatWasAppendedInOrder) {
  LayerKeyValues cache(7);
  const auto all = random_inputs(1, 7, 2);
  std::int64_t end = 0;
  for (const std::int64_t count : {3, 1, 2, 1}) {
    const auto part = [&](const torch::Tensor& x) {
      return x.slice(2, end, end + count);
    };
    const auto found = cache.append(part(all.keys), part(all.values));
    end += count;
    EXPECT_EQ(cache.positions(), end);
    EXPECT_TRUE(torch::equal(found.keys, all.keys.slice(2, 0, end)));
    EXPECT_TRUE(torch::equal(found.values, all.values.slice(2, 0, end)));
  }
}

TEST(Attention, AFullCacheRefusesMoreAndKeepsWhatItHas) {
  LayerKeyValues cache(4);
  const auto three = random_inputs(1, 3, 2);
  (void)cache.append(three.keys, three.values);
  EXPECT_EQ(
      test::error_of([&] { (void)cache.append(three.keys, three.values); }),
      "[models] expected no more positions than the cache has room for, "
      "found positions 6");
  EXPECT_EQ(cache.positions(), 3);
  const auto one = random_inputs(1, 1, 2);
  EXPECT_TRUE(torch::equal(
      cache.append(one.keys, one.values).keys.slice(2, 0, 3), three.keys));
}

}  // namespace
}  // namespace sherd::models
