// SPDX-License-Identifier: Apache-2.0
#include "train/plot.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Plot, TicksAreRoundAndInside) {
  EXPECT_THAT(round_ticks(0, 200, 8), ElementsAre(0, 50, 100, 150, 200));
  EXPECT_THAT(
      round_ticks(1.9, 5.6, 8), ElementsAre(2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5));
  EXPECT_FALSE(std::signbit(round_ticks(0, 200, 8).front()));
  for (const double high : {1e-3, 0.7, 1.0, 3.0, 42.0, 1e6}) {
    for (int count = 1; count < 12; ++count) {
      const auto ticks = round_ticks(0, high, count);
      ASSERT_LE(ticks.size(), static_cast<std::size_t>(count) + 1);
      ASSERT_GE(ticks.front(), 0);
      ASSERT_LE(ticks.back(), high * (1 + 1e-9));
    }
  }
}

TEST(Plot, LabelsOfTicksAreShort) {
  EXPECT_EQ(tick_label(0), "0");
  EXPECT_EQ(tick_label(0.002), "0.002");
  EXPECT_EQ(tick_label(5e-5), "5e-05");
  EXPECT_EQ(tick_label(-1500), "-1500");
  EXPECT_EQ(tick_label(20000), "20k");
  EXPECT_EQ(tick_label(1.5e6), "1.5M");
}

TEST(Plot, LinesLieWhereTheScalesSay) {
  const auto html = plot_html(
      {.title = "t",
       .x_high = 10,
       .series = {
           {.name = "n", .css_class = "c", .points = {{0, 1}, {10, 3}}}}});
  // A twentieth of the range is free above and below.
  EXPECT_THAT(html, HasSubstr("points='0.0,954.5 1000.0,45.5 '"));
  EXPECT_THAT(html, HasSubstr("<span class='key c'>n</span>"));
  EXPECT_THAT(html, HasSubstr("<span style='left:100.00%'>10</span>"));
}

TEST(Plot, OnePointAndNoneHaveAxes) {
  const Series one{.name = "one", .css_class = "c", .points = {{1, 2}}};
  for (const auto& series : {one, Series{.name = "none"}}) {
    const auto html = plot_html({.title = "t", .series = {series}});
    EXPECT_THAT(html, HasSubstr("class='axis'"));
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, Not(HasSubstr("inf")));
    EXPECT_THAT(html, Not(HasSubstr(">none<")));
  }
}

}  // namespace
}  // namespace sherd::tools
