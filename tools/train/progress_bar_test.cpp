// SPDX-License-Identifier: Apache-2.0
#include "train/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

TEST(ProgressBar, SaysHowFarItIs) {
  EXPECT_EQ(
      progress_line("verify", 1'500'000, 3'000'000),
      "verify [####################                    ]  50 %  1.5 MB of 3 "
      "MB");
  EXPECT_EQ(
      progress_line("merge", 0, 12),
      "merge [                                        ]   0 %  0 B of 12 B");
  EXPECT_EQ(
      progress_line("x", 0, 0),
      "x [########################################] 100 %  0 B of 0 B");
}

TEST(ProgressBar, UnitsHaveThreeDigits) {
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(999'600), "1 MB");
  EXPECT_EQ(bytes_text(12'345'678'901), "12.3 GB");
  EXPECT_EQ(bytes_text(7'000'000'000'000'000), "7e+03 TB");
}

}  // namespace
}  // namespace sherd::tools
