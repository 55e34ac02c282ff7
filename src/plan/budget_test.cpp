// SPDX-License-Identifier: Apache-2.0
#include "plan/budget.h"

#include <limits>
#include <utility>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>

namespace sherd::plan {
namespace {

using ::testing::HasSubstr;

// Root 5, then blocks; M = 45.
const std::vector<std::int64_t>& units() {
  static const std::vector<std::int64_t> bytes{5, 10, 20, 10};
  return bytes;
}

TEST(Budget, FullShardIsRootPlusVisitPlusLargestUnit) {
  const Budget assumed = full_shard_budget({.bytes = units(), .root = 0});
  EXPECT_EQ(assumed.assumed_visit_bytes, 25);
  EXPECT_EQ(assumed.bytes, 45);  // 5 + 25 + 20 is above M.

  const std::vector<std::int64_t> larger{5, 10, 20, 10, 10};
  EXPECT_EQ(full_shard_budget({.bytes = larger, .root = 0}).bytes, 5 + 25 + 20);
}

TEST(Budget, FullShardWithoutARootCountsTheLargestUnitTwice) {
  const std::vector<std::int64_t> chain(8, 10);
  const Budget budget = full_shard_budget({.bytes = chain});
  EXPECT_EQ(budget.bytes, 20);
}

TEST(Budget, FullShardHasRoomForAsManyUnitsAheadAsAsked) {
  const std::vector<std::int64_t> bytes{5, 10, 20, 10, 10, 10};
  for (const auto& [ahead, expected] :
       {std::pair(0, 5 + 25), {1, 30 + 20}, {2, 65}, {1'000'000'000, 65}}) {
    const Budget budget = full_shard_budget({.bytes = bytes, .root = 0}, ahead);
    EXPECT_EQ(budget.bytes, expected) << ahead << " ahead";
    EXPECT_EQ(budget.assumed_visit_bytes, 25);
  }
}

TEST(Budget, ARootThatIsTheLargestUnitIsInAVisitOnce) {
  const std::vector<std::int64_t> bytes{100, 1, 2, 90};
  EXPECT_EQ(budget_floor({.bytes = bytes, .root = 0}), 190);
}

TEST(Budget, KeptUnitsArePartOfEveryVisit) {
  const UnitSizes sizes{
      .bytes = units(), .root = 0, .kept = {false, true, false, false}};
  EXPECT_EQ(budget_floor(sizes), 5 + 10 + 20);
  EXPECT_EQ(full_shard_budget(sizes).assumed_visit_bytes, 35);
  EXPECT_THROW((void)explicit_budget(sizes, 34), Error);
  EXPECT_EQ(explicit_budget(sizes, 35).bytes, 35);
  // All units: nothing is left to gather ahead.
  const std::vector<std::int64_t> pair{10, 20};
  EXPECT_EQ(full_shard_budget({.bytes = pair, .kept = {true, true}}).bytes, 30);
  EXPECT_THROW((void)budget_floor({.bytes = pair, .kept = {true}}), Error);
}

TEST(Budget, ShardGradOpHoldsEveryUnitAndNeverGrows) {
  const Budget budget = shard_grad_op_budget({.bytes = units(), .root = 0});
  EXPECT_EQ(budget.bytes, 45);
  EXPECT_FALSE(budget.assumed_visit_bytes.has_value());
}

TEST(Budget, GivenBytesAreTakenAsTheyAreDownToTheFloor) {
  const UnitSizes sizes{.bytes = units(), .root = 0};
  const Budget budget = explicit_budget(sizes, 25);
  EXPECT_EQ(budget.bytes, 25);
  EXPECT_FALSE(budget.assumed_visit_bytes.has_value());
  try {
    (void)explicit_budget(sizes, 24);
    FAIL() << "below the floor must throw";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("24 bytes is below its floor of 25"));
  }
}

TEST(Budget, AModelWithoutUnitsNeedsNothing) {
  const UnitSizes none{.bytes = {}};
  EXPECT_EQ(full_shard_budget(none).bytes, 0);
  EXPECT_EQ(explicit_budget(none, 0).bytes, 0);
}

TEST(Budget, RefusesNonsense) {
  const std::vector<std::int64_t> negative{1, -1};
  const std::vector<std::int64_t> huge(
      5, std::numeric_limits<std::int64_t>::max() / 8);
  const auto total = [](const std::vector<std::int64_t>& bytes,
                        std::optional<UnitId> root) {
    return total_unit_bytes({.bytes = bytes, .root = root});
  };
  EXPECT_THROW((void)total(negative, {}), Error);
  EXPECT_THROW((void)total(huge, {}), Error);
  EXPECT_THROW((void)total(units(), 4), Error);
  EXPECT_THROW((void)total(units(), -1), Error);
}

}  // namespace
}  // namespace sherd::plan
