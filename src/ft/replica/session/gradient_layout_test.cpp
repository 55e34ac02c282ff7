// SPDX-License-Identifier: Apache-2.0
#include "ft/replica/session/gradient_layout.h"

#include <string>
#include <vector>
#include <gtest/gtest.h>

namespace sherd::ft {
namespace {

using Sizes = std::vector<std::int64_t>;

TEST(GradientLayout, TheLastSliceComesFirst) {
  const GradientLayout layout(Sizes{5, 3, 2}, 100);
  EXPECT_EQ(layout.begin_of(2), 0);
  EXPECT_EQ(layout.begin_of(1), 2);
  EXPECT_EQ(layout.begin_of(0), 5);
  EXPECT_EQ(layout.mark_of(0), 10);
  EXPECT_EQ(layout.mark_of(2), 12);
  EXPECT_EQ(layout.buckets(), Sizes{13});
}

TEST(GradientLayout, ABucketEndsWithTheSliceThatFillsIt) {
  const GradientLayout layout(Sizes{1, 9, 4, 6, 3}, 8);
  EXPECT_EQ(layout.buckets(), (Sizes{9 + 2, 13 + 2, 1 + 1}));
  EXPECT_EQ(layout.bucket_of(4), 0);
  EXPECT_EQ(layout.bucket_of(3), 0);
  EXPECT_EQ(layout.bucket_of(2), 1);
  EXPECT_EQ(layout.bucket_of(1), 1);
  EXPECT_EQ(layout.bucket_of(0), 2);
  EXPECT_EQ(layout.begin_of(3), 3);
  EXPECT_EQ(layout.mark_of(3), 9);
  EXPECT_EQ(layout.begin_of(2), 11);
  EXPECT_EQ(layout.begin_of(0), 26);
  EXPECT_EQ(layout.mark_of(0), 27);
}

TEST(GradientLayout, ARankWithoutSlicesHasAnEmptyBucket) {
  EXPECT_EQ(GradientLayout({}, 8).buckets(), Sizes{0});
}

TEST(GradientLayout, BucketsAreNamedByTheirFirstAndLastSlices) {
  const GradientLayout layout(Sizes{1, 9, 4, 6, 3}, 8);
  EXPECT_EQ(
      bucket_names(layout, {"a", "b", "c", "d", "e"}),
      (std::vector<std::string>{"d to e", "b to c", "a"}));
  EXPECT_EQ(
      bucket_names(GradientLayout({}, 8), {}), std::vector<std::string>{""});
}

}  // namespace
}  // namespace sherd::ft
