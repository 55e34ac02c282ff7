// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/grad_scaler.h>

#include <torch/torch.h>

#include <limits>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/sgd.h>

namespace sherd {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// One fp32 parameter of three elements that forward uses in fp16.
NamedParameters half_parameters() {
  NamedParameters parameters;
  parameters.items.push_back(
      {"weight", torch::tensor({1.0F, 2.0F, 3.0F}).requires_grad_()});
  parameters.uses_fp16 = true;
  return parameters;
}

void set_gradient(const NamedParameters& parameters, at::Tensor gradient) {
  parameters.items[0].slice.mutable_grad() = std::move(gradient);
}

struct CountedSteps {
  int count = 0;
  void step() { ++count; }
};

// Makes a step whose gradient is that of a scaled loss.
bool take_step(
    GradScaler& scaler, const NamedParameters& parameters, double gradient) {
  set_gradient(
      parameters, torch::full({3}, gradient * scaler.get_scale(), at::kFloat));
  CountedSteps optimizer;
  const bool made = scaler.step(optimizer);
  EXPECT_EQ(optimizer.count, made ? 1 : 0);
  scaler.update();
  return made;
}

TEST(GradScaler, ScalesTheLossAndUnscalesGradientsWithoutLosingABit) {
  const auto parameters = half_parameters();
  GradScaler scaler(parameters);
  const auto& weight = parameters.items[0].slice;
  (weight * weight).sum().backward();
  const auto expected = weight.grad().clone();
  weight.mutable_grad().reset();

  const auto loss = scaler.scale((weight * weight).sum());
  EXPECT_EQ(loss.item<float>(), 14.0F * 65536.0F);
  loss.backward();
  EXPECT_TRUE(torch::equal(weight.grad(), expected * 65536.0F));
  scaler.unscale();
  EXPECT_TRUE(torch::equal(weight.grad(), expected));
}

TEST(GradScaler, TheScaledLossOfFp16IsFp32) {
  const GradScaler scaler(half_parameters());
  const auto loss = scaler.scale(torch::tensor(4.0F).to(torch::kHalf));
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_EQ(loss.item<float>(), 4.0F * 65536.0F);
}

// torch.amp.GradScaler does the same with these gradients when it grows after three steps.
TEST(GradScaler, GrowsAfterFiniteStepsInARowAndHalvesWhenOneIsNot) {
  const auto parameters = half_parameters();
  GradScaler scaler(parameters, {.init_scale = 64.0, .growth_interval = 3});
  const std::vector<std::pair<double, double>> gradients_and_scales = {
      {1, 64},    {1, 64}, {1, 128}, {1, 128}, {kInf, 64},  {1, 64},   {1, 64},
      {kNan, 32}, {1, 32}, {1, 32},  {1, 64},  {-kInf, 32}, {kInf, 16}};
  for (const auto& [gradient, scale] : gradients_and_scales) {
    EXPECT_EQ(take_step(scaler, parameters, gradient), std::isfinite(gradient));
    EXPECT_EQ(scaler.get_scale(), scale);
  }
}

TEST(GradScaler, TheScaleStaysInTheRangeOfFp32) {
  const auto parameters = half_parameters();
  const double largest = std::numeric_limits<float>::max();
  GradScaler top(parameters, {.init_scale = largest, .growth_interval = 1});
  EXPECT_TRUE(take_step(top, parameters, 0.0));
  EXPECT_EQ(top.get_scale(), largest);

  const double smallest = std::numeric_limits<float>::min();
  GradScaler low(parameters, {.init_scale = smallest});
  EXPECT_THAT(
      [&] { take_step(low, parameters, kInf); },
      ThrowsMessage<Error>(HasSubstr("the scale has fallen to 5.87747e-39")));
  EXPECT_EQ(low.get_scale(), smallest);
}

// Gradients of every kind: fp64, fp16, bf16, sparse, and none.
TEST(GradScaler, FindsAnInfiniteGradientOfAnyKind) {
  const auto expect_found = [](const torch::Tensor& value,
                               const torch::Tensor& fine,
                               const torch::Tensor& overflown) {
    NamedParameters parameters;
    parameters.items.push_back({"used", value});
    parameters.items.push_back({"unused", torch::ones({2}).requires_grad_()});
    GradScaler scaler(parameters, {.init_scale = 4.0, .uses_fp16 = true});
    CountedSteps optimizer;
    for (const auto& [gradient, made] :
         {std::pair{fine, true}, std::pair{overflown, false}}) {
      value.mutable_grad() = gradient.clone();
      EXPECT_EQ(scaler.step(optimizer), made) << value.dtype();
      scaler.update();
      if (made) {
        EXPECT_TRUE(torch::equal(
            value.grad().to_dense(), (fine.to_dense() / 4).to(value.dtype())));
      }
    }
    EXPECT_EQ(optimizer.count, 1);
  };
  for (const auto dtype :
       {torch::kDouble, torch::kFloat, torch::kHalf, torch::kBFloat16}) {
    const auto options = torch::TensorOptions().dtype(dtype);
    expect_found(
        torch::ones({3}, options).requires_grad_(),
        torch::tensor({8.0, 12.0, -4.0}, options),
        torch::tensor({1.0, -kInf, 1.0}, options));
  }
  const auto rows = [](double value) {
    return torch::sparse_coo_tensor(
        torch::tensor({{1}}), torch::full({1, 2}, value, torch::kFloat),
        {3, 2});
  };
  expect_found(torch::ones({3, 2}).requires_grad_(), rows(8.0), rows(kNan));
}

TEST(GradScaler, AnOverflowOnAnotherRankSkipsTheStepAndPublishes) {
  auto parameters = half_parameters();
  bool overflow = true;
  int published = 0;
  parameters.publish = [&] { ++published; };
  parameters.all_reduce_max = [&](const at::Tensor& numbers) {
    ASSERT_EQ(numbers.scalar_type(), at::kDouble);
    ASSERT_EQ(numbers.dim(), 1);
    numbers.clamp_min_(overflow ? 1.0 : 0.0);
  };
  GradScaler scaler(parameters);
  EXPECT_FALSE(take_step(scaler, parameters, 1.0));
  EXPECT_EQ(scaler.get_scale(), 32768.0);
  EXPECT_EQ(published, 1);

  overflow = false;
  EXPECT_TRUE(take_step(scaler, parameters, 1.0));
  EXPECT_EQ(published, 1);  // The optimizer does that.
}

TEST(GradScaler, OneDecisionForAllOptimizersSherdsAndLibTorchs) {
  auto parameters = half_parameters();
  parameters.items.push_back({"bias", torch::ones({2}).requires_grad_()});
  const auto [bias, weight] = split(parameters, {"bias"});
  Sgd ours(bias, {.learning_rate = 0.5});
  torch::optim::SGD theirs({weight.items[0].slice}, 0.5);
  GradScaler scaler(parameters);
  const auto step_with = [&](double of_bias) {
    set_gradient(weight, torch::full({3}, 65536.0F));
    set_gradient(bias, torch::full({2}, of_bias, at::kFloat));
    const bool made = scaler.step(ours, theirs);
    scaler.update();
    return made;
  };
  EXPECT_FALSE(step_with(kInf));
  EXPECT_TRUE(
      torch::equal(weight.items[0].slice, torch::tensor({1.0F, 2.0F, 3.0F})));
  EXPECT_TRUE(step_with(32768.0));
  EXPECT_TRUE(
      torch::equal(weight.items[0].slice, torch::tensor({0.0F, 1.0F, 2.0F})));
  EXPECT_TRUE(torch::equal(bias.items[0].slice, torch::full({2}, 0.5F)));
}

TEST(GradScaler, ItsStateIsTheScaleAndTheStepsSinceItChanged) {
  const auto parameters = half_parameters();
  GradScaler first(parameters, {.init_scale = 8.0, .growth_interval = 3});
  take_step(first, parameters, kInf);
  take_step(first, parameters, 1.0);
  take_step(first, parameters, 1.0);
  GradScaler second(parameters, {.growth_interval = 3});
  const auto from = first.state();
  const auto to = second.state();
  ASSERT_EQ(from.size(), 2U);
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].first, to[i].first);
    to[i].second.copy_(from[i].second);
  }
  EXPECT_EQ(second.get_scale(), 4.0);
  take_step(second, parameters, 1.0);
  EXPECT_EQ(second.get_scale(), 8.0);  // The third of the three.
}

TEST(GradScalerRefusals, NameTheOrderOfCalls) {
  const auto parameters = half_parameters();
  GradScaler scaler(parameters);
  CountedSteps optimizer;
  EXPECT_THAT(
      [&] { scaler.update(); },
      ThrowsMessage<Error>(HasSubstr("before update(), found neither")));
  scaler.unscale();
  EXPECT_THAT(
      [&] { scaler.unscale(); },
      ThrowsMessage<Error>(HasSubstr("found unscale() again")));
  scaler.step(optimizer);
  EXPECT_THAT(
      [&] { scaler.step(optimizer); },
      ThrowsMessage<Error>(HasSubstr("found step() again")));
  scaler.update();
  scaler.step(optimizer);
  EXPECT_EQ(optimizer.count, 2);
}

TEST(GradScalerRefusals, CallsAfterItWasMovedFrom) {
  GradScaler first(half_parameters());
  const GradScaler second(std::move(first));
  CountedSteps optimizer;
  EXPECT_THAT(
      // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
      [&] { first.step(optimizer); },
      ThrowsMessage<Error>(HasSubstr("[optim] GradScaler was moved from")));
  EXPECT_EQ(optimizer.count, 0);
}

TEST(GradScalerRefusals, NothingInFp16) {
  auto parameters = half_parameters();
  parameters.uses_fp16 = false;
  const auto made = [&](const GradScalerOptions& options) {
    return GradScaler(parameters, options).get_scale();
  };
  EXPECT_THAT(
      [&] { made({}); },
      ThrowsMessage<Error>(HasSubstr("used in fp16 (FullyShardOptions")));
  EXPECT_EQ(made({.uses_fp16 = true}), 65536.0);
  parameters.items.push_back({"low", torch::ones({2}, torch::kHalf)});
  EXPECT_EQ(made({}), 65536.0);
  parameters.items.clear();
  EXPECT_THAT(
      [&] { made({}); },
      ThrowsMessage<Error>(HasSubstr("at least one parameter, found none")));
}

TEST(GradScalerRefusals, AnOptimizerThatUpdatesInBackward) {
  auto parameters = half_parameters();
  bool writes = true;
  parameters.writes_in_backward = [&] { return writes; };
  const GradScaler scaler(parameters);
  EXPECT_THAT(
      [&] { scaler.scale(torch::ones({})); },
      ThrowsMessage<Error>(HasSubstr("an optimizer updates in backward")));
  writes = false;
  EXPECT_EQ(scaler.scale(torch::ones({})).item<double>(), 65536.0);
}

TEST(GradScalerRefusals, OptionsOutOfRange) {
  const auto expect_refused = [](const GradScalerOptions& options,
                                 const char* sentence) {
    EXPECT_THAT(
        [&] { GradScaler(half_parameters(), options); },
        ThrowsMessage<Error>(HasSubstr(sentence)));
  };
  expect_refused({.init_scale = 0.0}, "init_scale to be positive and in the");
  expect_refused({.init_scale = 1e39}, "init_scale to be positive and in the");
  expect_refused(
      {.growth_factor = 1.0}, "growth_factor to be finite and above 1");
  expect_refused({.backoff_factor = 1.0}, "backoff_factor between 0 and 1");
  expect_refused({.backoff_factor = kNan}, "backoff_factor between 0 and 1");
  expect_refused({.growth_interval = 0}, "growth_interval of at least 1");
}

}  // namespace
}  // namespace sherd
