// SPDX-License-Identifier: Apache-2.0
#include "models/rotary.h"

#include <cmath>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace sherd::models {
namespace {

// The pair (x[i], x[i + D / 2]) as a complex number, multiplied by exp(i angle).
torch::Tensor rotate_by_hand(const torch::Tensor& x, double theta) {
  const auto positions = x.size(-2);
  const auto half = x.size(-1) / 2;
  auto turned = torch::empty_like(x);
  for (std::int64_t t = 0; t < positions; ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      const auto angle = static_cast<double>(t) *
          std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
      const auto a = x.select(-2, t).select(-1, i);
      const auto b = x.select(-2, t).select(-1, i + half);
      turned.select(-2, t).select(-1, i).copy_(
          a * std::cos(angle) - b * std::sin(angle));
      turned.select(-2, t)
          .select(-1, i + half)
          .copy_(b * std::cos(angle) + a * std::sin(angle));
    }
  }
  return turned;
}

RotaryTable table(std::int64_t positions, std::int64_t width, double theta) {
  return rotary_table(
      {.positions = positions, .head_width = width, .theta = theta},
      torch::kCPU);
}

TEST(Rotary, TurnsPairsThatAreHalfAHeadApart) {
  torch::manual_seed(3);
  for (const double theta : {10000.0, 500000.0}) {
    for (const std::int64_t width : {2, 4, 6}) {
      const auto x = torch::randn({2, 3, 5, width}, torch::kDouble);
      EXPECT_TRUE(torch::allclose(
          rotate(x, table(5, width, theta)), rotate_by_hand(x, theta), 0.0,
          1e-5))
          << "theta " << theta << ", width " << width;
    }
  }
}

TEST(Rotary, ProductsDependOnTheDistanceOnly) {
  torch::manual_seed(4);
  // The same two vectors at every position.
  const auto q = torch::randn({1, 8}, torch::kDouble).expand({40, 8});
  const auto k = torch::randn({1, 8}, torch::kDouble).expand({40, 8});
  const auto all = table(40, 8, 10000.0);
  const auto scores = torch::matmul(rotate(q, all), rotate(k, all).t());
  for (std::int64_t distance = -39; distance <= 39; ++distance) {
    const auto equal = scores.diagonal(distance);
    EXPECT_NEAR(equal.max().item<double>(), equal.min().item<double>(), 1e-4)
        << "distance " << distance;
  }
  // They do depend on the distance.
  EXPECT_GT(scores[0].std().item<double>(), 1e-3);
}

TEST(Rotary, ATableOfLaterPositionsIsThatPartOfTheWhole) {
  for (const auto kind :
       {RopeKind::kDefault, RopeKind::kLinear, RopeKind::kLlama3,
        RopeKind::kYarn}) {
    RotaryOptions options{
        .positions = 12,
        .head_width = 8,
        .scaling = {.kind = kind, .factor = 4.0, .original_positions = 64}};
    const auto whole = rotary_table(options, torch::kCPU);
    options.first = 5;
    options.positions = 3;
    const auto part = rotary_table(options, torch::kCPU);
    EXPECT_TRUE(torch::equal(part.cosine, whole.cosine.slice(0, 5, 8)));
    EXPECT_TRUE(torch::equal(part.sine, whole.sine.slice(0, 5, 8)));
  }
}

TEST(Rotary, LinearScalingDividesPositionsByItsFactor) {
  const auto stretched = rotary_table(
      {.positions = 9,
       .head_width = 8,
       .scaling = {.kind = RopeKind::kLinear, .factor = 4.0}},
      torch::kCPU);
  const auto plain = table(3, 8, 10000.0);
  for (std::int64_t position = 0; position < 3; ++position) {
    EXPECT_TRUE(torch::allclose(
        stretched.sine[4 * position], plain.sine[position], 1e-5, 1e-6));
  }
}

TEST(Rotary, YarnStretchesSlowPairsAndLeavesFastOnes) {
  const auto stretched = rotary_table(
      {.positions = 9,
       .head_width = 16,
       .theta = 100.0,
       .scaling =
           {.kind = RopeKind::kYarn,
            .factor = 4.0,
            .original_positions = 64,
            .beta_fast = 8.0,
            .beta_slow = 1.0}},
      torch::kCPU);
  const auto plain = table(9, 16, 100.0);
  const double larger = 0.1 * std::log(4.0) + 1.0;
  // Pair 0 turns ten times in 64 positions, pair 7 a fifth of a time.
  EXPECT_TRUE(torch::allclose(
      stretched.sine.select(1, 0), plain.sine.select(1, 0) * larger, 1e-5,
      1e-6));
  EXPECT_TRUE(torch::allclose(
      stretched.sine[8][7], plain.sine[2][7] * larger, 1e-5, 1e-6));
}

TEST(Rotary, LengthsStay) {
  torch::manual_seed(5);
  const auto x = torch::randn({9, 16}, torch::kDouble);
  const auto turned = rotate(x, table(9, 16, 10000.0));
  EXPECT_TRUE(torch::allclose(turned.norm(2, -1), x.norm(2, -1), 1e-6));
  EXPECT_TRUE(torch::equal(turned[0], x[0]));  // Position 0.
}

TEST(Rotary, TheTableIsFp32AndTheResultOfTheInputsType) {
  const auto all = table(4, 6, 10000.0);
  EXPECT_EQ(all.cosine.scalar_type(), torch::kFloat);
  EXPECT_EQ(all.sine.sizes(), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(
      rotate(torch::ones({4, 6}, torch::kBFloat16), all).scalar_type(),
      torch::kBFloat16);
}

}  // namespace
}  // namespace sherd::models
