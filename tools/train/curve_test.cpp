// SPDX-License-Identifier: Apache-2.0
#include "train/curve.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sherd::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<StepMetrics> falling(std::int64_t steps) {
  std::vector<StepMetrics> records;
  for (std::int64_t step = 1; step <= steps; ++step) {
    StepMetrics record{
        .step = step, .loss = 2.0 + 3.5 / static_cast<double>(step)};
    if (step % 10 == 0) {
      record.val_loss = record.loss + 0.25;
    }
    records.push_back(record);
  }
  return records;
}

TEST(Curve, NeedsNoNetwork) {
  const auto html = curve_html("run", {"fact"}, falling(30));
  EXPECT_THAT(html, Not(HasSubstr("http")));
  EXPECT_THAT(html, Not(HasSubstr("src=")));
  EXPECT_THAT(html, Not(HasSubstr("href=")));
  EXPECT_THAT(html, Not(HasSubstr("@import")));
}

TEST(Curve, HoldsEveryPointBothCurvesAndBothColourSchemes) {
  const auto html = curve_html("run", {}, falling(30));
  EXPECT_THAT(html, HasSubstr("\"step\":30"));
  EXPECT_THAT(html, HasSubstr("<polyline class='train'"));
  EXPECT_THAT(html, HasSubstr("<circle class='val'"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("loss (nats per token)"));
}

TEST(Curve, TextIsEscaped) {
  const auto html = curve_html("a<b>&\"c\"", {"<script>"}, {});
  EXPECT_THAT(html, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;"));
  EXPECT_THAT(html, HasSubstr("<p>&lt;script&gt;</p>"));
}

TEST(Curve, SurvivesNothingOneStepAndLossesThatAreNoNumbers) {
  auto records = falling(2);
  records[1].loss = std::numeric_limits<double>::quiet_NaN();
  for (const auto& some : {std::vector<StepMetrics>{}, falling(1), records}) {
    const auto html = curve_html("run", {}, some);
    EXPECT_THAT(html, Not(HasSubstr("nan")));
    EXPECT_THAT(html, Not(HasSubstr("inf")));
  }
}

TEST(Curve, TicksAreRoundAndInside) {
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

}  // namespace
}  // namespace sherd::tools
