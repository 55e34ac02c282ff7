// SPDX-License-Identifier: Apache-2.0
#include "base/restart_budget.h"

#include <gtest/gtest.h>

namespace sherd {
namespace {

using std::chrono::seconds;

TEST(RestartBudget, IsSpentWithinTheWindowAndBackBehindIt) {
  RestartBudget budget(2, seconds(10));
  EXPECT_TRUE(budget.take(seconds(0)));
  EXPECT_TRUE(budget.take(seconds(4)));
  EXPECT_FALSE(budget.take(seconds(9)));
  EXPECT_TRUE(budget.take(seconds(10)));
  EXPECT_FALSE(budget.take(seconds(13)));
  EXPECT_TRUE(budget.take(seconds(14)));
}

TEST(RestartBudget, WithoutAWindowIsForLife) {
  RestartBudget budget(1, seconds(0));
  EXPECT_TRUE(budget.take(seconds(0)));
  EXPECT_FALSE(budget.take(std::chrono::hours(100000)));
  budget.renew();
  EXPECT_TRUE(budget.take(std::chrono::hours(100000)));
}

TEST(RestartBudget, OfNoneHasNone) {
  RestartBudget budget(0, seconds(10));
  EXPECT_FALSE(budget.take(seconds(0)));
  EXPECT_FALSE(budget.take(seconds(100)));
}

}  // namespace
}  // namespace sherd
