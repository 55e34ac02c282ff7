// SPDX-License-Identifier: Apache-2.0
#include "plan/arithmetic.h"

#include <limits>
#include <gtest/gtest.h>

namespace sherd::plan {
namespace {

TEST(Arithmetic, RoundsUpToMultiples) {
  EXPECT_EQ(round_up(0, 16), 0);
  EXPECT_EQ(round_up(1, 16), 16);
  EXPECT_EQ(round_up(16, 16), 16);
  EXPECT_EQ(divide_up(7, 2), 4);
}

TEST(Arithmetic, ProductsStopAtTheCeilingInsteadOfOverflowing) {
  EXPECT_EQ(multiply_capped(0, kSizeCeiling), 0);
  EXPECT_EQ(multiply_capped(3, 5), 15);
  EXPECT_EQ(
      multiply_capped(3, std::numeric_limits<std::int64_t>::max()),
      kSizeCeiling);
}

}  // namespace
}  // namespace sherd::plan
