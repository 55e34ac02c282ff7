// SPDX-License-Identifier: Apache-2.0
#include "plan/padding_reason.h"

#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

FlatLayout equal_layout(const std::vector<FlatParameter>& parameters) {
  return plan_flat_layout(
      parameters, {.ranks = 4, .counts = CountRule::kEqual});
}

TEST(PaddingReason, NamesAlignmentAndEqualCounts) {
  const FlatLayout layout = equal_layout({{"a", 10}, {"b", 100}});
  EXPECT_EQ(layout.padding.parameter_alignment, 6);
  EXPECT_EQ(layout.padding.equal_counts, 128 - 116);
  EXPECT_EQ(layout.padding.granularity, 0);
  EXPECT_EQ(
      layout.padding.reason,
      "6 elements: parameters start at multiples of 16; "
      "12 elements: 4 equal shards, each a multiple of 32");
}

TEST(PaddingReason, NamesTheMultipleThatASpanningParameterForces) {
  const FlatLayout layout =
      equal_layout({{"small", 48, 48}, {"rows", 96 * 33, 96}});
  EXPECT_GT(layout.padding.granularity, 0);
  EXPECT_THAT(
      layout.padding.reason,
      AllOf(
          HasSubstr("a multiple of lcm(32, 96) = 96 because 'rows' in blocks "
                    "of 96 spans"),
          Not(HasSubstr("'small'"))));
}

TEST(PaddingReason, NamesABlockLargerThanAnEvenShare) {
  const FlatLayout layout = equal_layout({{"head", 320, 320}, {"b", 64}});
  EXPECT_EQ(layout.shard(0).numel(), 320);
  EXPECT_EQ(layout.padding.granularity, 4 * (320 - 96));
  EXPECT_THAT(
      layout.padding.reason,
      HasSubstr("a share holds the largest block, 320 elements of 'head'"));
}

TEST(PaddingReason, NamesTheWidestGap) {
  const FlatLayout layout = equal_layout(
      {{"a", 64, 64},
       {"b", 64, 64},
       {"c", 96, 96},
       {"d", 96, 96},
       {"e", 64, 64}});
  EXPECT_EQ(layout.shard(0).numel(), 128);
  EXPECT_THAT(
      layout.padding.reason,
      HasSubstr("no smaller share meets the block boundaries; the widest gap "
                "is 32 before 'd'"));
}

}  // namespace
}  // namespace sherd::plan
