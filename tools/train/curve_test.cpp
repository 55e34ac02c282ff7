// SPDX-License-Identifier: Apache-2.0
#include "train/curve.h"

#include <limits>
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
  EXPECT_THAT(html, HasSubstr("<polyline class='raw'"));
  EXPECT_THAT(html, HasSubstr("<polyline class='train'"));
  EXPECT_THAT(html, HasSubstr("<path class='dot val'"));
  EXPECT_THAT(html, HasSubstr("Learning rate"));
  EXPECT_THAT(html, HasSubstr("Gradient norm"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(html, HasSubstr("Loss (nats per token)"));
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

TEST(Curve, SmoothingKeepsAConstantAndTheShapeAndDropsNoise) {
  EXPECT_THAT(smoothed({}), ElementsAre());
  EXPECT_THAT(smoothed({5}), ElementsAre(5));
  const auto flat = smoothed(std::vector<double>(300, 2.0));
  EXPECT_NEAR(flat.front(), 2.0, 1e-12);
  EXPECT_NEAR(flat.back(), 2.0, 1e-12);
  std::vector<double> noisy;
  for (int i = 0; i < 300; ++i) {
    noisy.push_back(i % 2 == 0 ? 1.0 : 3.0);
  }
  const auto smooth = smoothed(noisy);
  EXPECT_NEAR(smooth.back(), 2.0, 0.2);
  // After a tenth of the steps a jump is fully visible.
  std::vector<double> jump(270, 1.0);
  jump.resize(300, 2.0);
  EXPECT_GT(smoothed(jump).back(), 1.9);
  // At the beginning a few steps suffice.
  std::vector<double> early(10, 5.0);
  early.resize(300, 3.0);
  EXPECT_LT(smoothed(early)[20], 3.1);
}

TEST(Curve, IsDueAfterTenStepsAtValidationsAndWhenItIsOld) {
  EXPECT_FALSE(curve_is_due(9, false, 1e9));
  EXPECT_TRUE(curve_is_due(10, false, 0));
  EXPECT_FALSE(curve_is_due(11, false, 9));
  EXPECT_TRUE(curve_is_due(11, false, 10));
  EXPECT_TRUE(curve_is_due(1, true, 0));
}

TEST(Curve, ALongRunHasNoLongerPageAndKeepsItsLastStep) {
  const auto html = curve_html("run", {}, falling(100'003));
  EXPECT_LT(html.size(), 5'000'000U);
  EXPECT_THAT(html, HasSubstr("\"step\":100003,"));
  EXPECT_THAT(html, HasSubstr("<span style='left:100.00%'>100k</span>"));
}

TEST(Curve, ALongRunThatValidatesEachStepHasNoLongerPage) {
  auto records = falling(100'003);
  for (auto& record : records) {
    record.val_loss = record.loss;
  }
  EXPECT_LT(curve_html("run", {}, records).size(), 5'000'000U);
}

}  // namespace
}  // namespace sherd::tools
