// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/adamw.h>

#include <torch/torch.h>

#include <limits>
#include <random>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "base/check.h"
#include "support/optimizer_twin.h"

namespace sherd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::OptimizerTwin;
using testing::SliceMemory;
using ::testing::ThrowsMessage;

const std::vector<std::string> kNames = {
    "wte.weight",  "h.0.ln.weight", "h.0.ln.bias", "h.0.fc.weight",
    "h.0.fc.bias", "h.1.fc.weight", "scale"};
const std::vector<std::int64_t> kSizes = {96, 16, 16, 301, 7, 1024, 1};

NamedParameters one(const std::string& name, at::Tensor slice) {
  NamedParameters parameters;
  parameters.items.push_back({name, std::move(slice)});
  return parameters;
}

at::Tensor leaf(at::Tensor values) { return values.requires_grad_(true); }

class AdamWParity : public ::testing::TestWithParam<SliceMemory> {};

TEST_P(AdamWParity, EqualsTorchOverTwentySteps) {
  OptimizerTwin twin(kNames, kSizes, GetParam(), 1);
  AdamW ours(twin.slices, {.learning_rate = 1e-2, .weight_decay = 0.1});
  torch::optim::AdamW theirs(
      twin.twins, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  for (int step = 0; step < 20; ++step) {
    twin.set_gradients(/*missing=*/0.0);
    ours.step();
    theirs.step();
  }
  twin.expect_equal();
  twin.expect_gaps_untouched();
}

TEST_P(AdamWParity, EqualsTorchWhenGradientsComeAndGo) {
  OptimizerTwin twin(kNames, kSizes, GetParam(), 2);
  AdamW ours(twin.slices, {.learning_rate = 3e-3, .beta1 = 0.8, .beta2 = 0.95});
  torch::optim::AdamW theirs(
      twin.twins, torch::optim::AdamWOptions(3e-3).betas({0.8, 0.95}));
  for (int step = 0; step < 20; ++step) {
    twin.set_gradients(/*missing=*/0.4);
    ours.step();
    theirs.step();
    ours.zero_grad();
    theirs.zero_grad();
  }
  twin.expect_equal();
  twin.expect_gaps_untouched();
}

TEST_P(AdamWParity, EqualsTorchWithGroupsAndAChangingRate) {
  OptimizerTwin twin(kNames, kSizes, GetParam(), 3);
  AdamW ours(
      twin.slices,
      {.learning_rate = 1e-2,
       .weight_decay = 0.1,
       .groups = {
           {.names = {"*.bias", "*.ln.*"}, .weight_decay = 0.0},
           {.names = {"wte.*"}, .learning_rate_scale = 0.5},
           {.names = {"*bias"}, .learning_rate_scale = 100.0}}});
  const auto options = [](double rate, double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(rate).weight_decay(decay));
  };
  const auto& t = twin.twins;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector{t[1], t[2], t[4]}, options(1e-2, 0.0));
  groups.emplace_back(std::vector{t[0]}, options(5e-3, 0.1));
  groups.emplace_back(std::vector{t[3], t[5], t[6]}, options(1e-2, 0.1));
  torch::optim::AdamW theirs(groups);
  for (int step = 0; step < 20; ++step) {
    const double factor = 1.0 / (1.0 + step);
    ours.set_learning_rate(1e-2 * factor);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      theirs.param_groups()[g].options().set_lr(
          (g == 1 ? 5e-3 : 1e-2) * factor);
    }
    twin.set_gradients(/*missing=*/0.2);
    ours.step();
    theirs.step();
  }
  twin.expect_equal();
}

TEST_P(AdamWParity, EqualsTorchForRandomShapes) {
  std::mt19937_64 random(9);
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (std::uint64_t trial = 0; trial < 10; ++trial) {
    std::vector<std::string> names;
    std::vector<std::int64_t> sizes;
    const std::int64_t count = draw(1, 12);
    for (std::int64_t i = 0; i < count; ++i) {
      names.push_back(str("p", i));
      sizes.push_back(draw(0, 3) == 0 ? draw(1, 3000) : draw(1, 40));
    }
    OptimizerTwin twin(names, sizes, GetParam(), trial);
    AdamW ours(twin.slices);
    torch::optim::AdamW theirs(twin.twins);
    for (int step = 0; step < 20; ++step) {
      twin.set_gradients(/*missing=*/0.1);
      ours.step();
      theirs.step();
    }
    twin.expect_equal();
    twin.expect_gaps_untouched();
  }
}

// With an epsilon of 0, padding must not become 0 / 0.
TEST_P(AdamWParity, LeavesPaddingAloneWithoutEpsilon) {
  OptimizerTwin twin(kNames, kSizes, GetParam(), 4);
  AdamW ours(twin.slices, {.epsilon = 0.0});
  torch::optim::AdamW theirs(twin.twins, torch::optim::AdamWOptions().eps(0.0));
  for (int step = 0; step < 3; ++step) {
    twin.set_gradients(/*missing=*/0.0);
    ours.step();
    theirs.step();
  }
  twin.expect_equal();
  twin.expect_gaps_untouched();
}

INSTANTIATE_TEST_SUITE_P(
    Memory,
    AdamWParity,
    ::testing::Values(
        SliceMemory::kApart,
        SliceMemory::kTight,
        SliceMemory::kAligned,
        SliceMemory::kDirtyGaps,
        SliceMemory::kGradientsApart),
    [](const auto& param) { return name_of(param.param); });

TEST(AdamW, CountsOnlyUpdatesOfASlice) {
  OptimizerTwin twin({"a", "b"}, {16, 16}, SliceMemory::kAligned, 5);
  AdamW adamw(twin.slices);
  twin.set_gradients(/*missing=*/0.0);
  adamw.step();
  twin.slices.items[1].slice.mutable_grad().reset();
  const auto before = adamw.state("b").exp_avg.clone();
  adamw.step();

  EXPECT_EQ(adamw.state("a").step.item<float>(), 2.0F);
  EXPECT_EQ(adamw.state("b").step.item<float>(), 1.0F);
  EXPECT_TRUE(torch::equal(adamw.state("b").exp_avg, before));
}

TEST(AdamW, StateThatIsWrittenContinuesTheRun) {
  OptimizerTwin first({"a", "b"}, {10, 20}, SliceMemory::kAligned, 6);
  OptimizerTwin second({"a", "b"}, {10, 20}, SliceMemory::kApart, 6);
  AdamW saved(first.slices);
  first.set_gradients(/*missing=*/0.0);
  saved.step();

  AdamW restored(second.slices);
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& [name, slice] = first.slices.items[i];
    second.slices.items[i].slice.copy_(slice);
    second.slices.items[i].slice.mutable_grad() = slice.grad().clone();
    restored.state(name).exp_avg.copy_(saved.state(name).exp_avg);
    restored.state(name).exp_avg_sq.copy_(saved.state(name).exp_avg_sq);
    restored.state(name).step.copy_(saved.state(name).step);
  }
  saved.step();
  restored.step();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::equal(
        first.slices.items[i].slice, second.slices.items[i].slice));
  }
}

TEST(AdamW, PublishesAfterTheUpdateAlsoWithoutSlices) {
  int published = 0;
  NamedParameters none;
  none.publish = [&] { ++published; };
  AdamW empty(none);
  empty.step();
  empty.zero_grad();
  EXPECT_EQ(published, 1);
  EXPECT_THAT(empty.names(), ElementsAre());

  auto slice = leaf(torch::ones({3}));
  slice.mutable_grad() = torch::ones({3});
  auto parameters = one("w", slice);
  double seen = 1.0;
  parameters.publish = [&] { seen = slice[0].item<double>(); };
  AdamW adamw(parameters, {.learning_rate = 0.1, .weight_decay = 0.0});
  adamw.step();
  EXPECT_NEAR(seen, 0.9, 1e-6);
}

TEST(AdamW, AnOldGraphCannotBeUsedAfterwards) {
  OptimizerTwin twin({"a", "b"}, {16, 16}, SliceMemory::kAligned, 7);
  AdamW adamw(twin.slices);
  const auto& b = twin.slices.items[1].slice;
  const auto loss = (b * b).sum();
  twin.set_gradients(/*missing=*/0.0);
  adamw.step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(AdamW, ZeroGradMakesGradientsUndefinedAndKeepsTheirMemory) {
  auto slice = leaf(torch::ones({2}));
  const auto gradient = torch::ones({2});
  slice.mutable_grad() = gradient;
  AdamW adamw(one("w", slice));
  adamw.zero_grad();
  EXPECT_FALSE(slice.grad().defined());
  adamw.step();  // The slice is skipped.
  EXPECT_TRUE(torch::equal(slice, torch::ones({2})));
  EXPECT_TRUE(torch::equal(gradient, torch::ones({2})));
}

TEST(AdamW, TakesExpandedAndWiderGradients) {
  auto slice = leaf(torch::ones({4}));
  slice.mutable_grad() = torch::ones({1}).expand({4});
  AdamW adamw(one("w", slice), {.learning_rate = 0.1, .weight_decay = 0.0});
  adamw.step();
  EXPECT_TRUE(torch::allclose(slice, torch::full({4}, 0.9)));
}

TEST(AdamW, MixesTypesInOneList) {
  NamedParameters mixed;
  mixed.items.push_back({"double", leaf(torch::ones({4}, torch::kDouble))});
  mixed.items.push_back({"float", leaf(torch::ones({4}))});
  for (const auto& [name, slice] : mixed.items) {
    slice.mutable_grad() = torch::ones_like(slice).detach();
  }
  AdamW adamw(mixed, {.learning_rate = 0.1, .weight_decay = 0.0});
  adamw.step();
  for (const auto& [name, slice] : mixed.items) {
    EXPECT_NEAR(slice[0].item<double>(), 0.9, 1e-6) << name;
  }
  EXPECT_EQ(adamw.state("double").exp_avg.scalar_type(), torch::kDouble);
}

TEST(AdamW, ItsStateIsTheMeanOfGradientsAndOfTheirSquares) {
  const auto slice = leaf(torch::zeros({4}));
  slice.mutable_grad() = torch::full({4}, 2.0);
  AdamW adamw(one("w", slice), {.beta1 = 0.9, .beta2 = 0.99});
  adamw.step();
  const auto& state = adamw.state("w");
  EXPECT_TRUE(torch::allclose(state.exp_avg, torch::full({4}, 0.2)));
  EXPECT_TRUE(torch::allclose(state.exp_avg_sq, torch::full({4}, 0.04)));
}

TEST(AdamW, KeepsTheShapeOfSlicesInItsState) {
  auto matrix = leaf(torch::randn({3, 5}));
  AdamW adamw(one("w", matrix));
  EXPECT_EQ(adamw.state("w").exp_avg.sizes(), matrix.sizes());
  EXPECT_EQ(adamw.state("w").step.dim(), 0);
}

TEST(AdamW, MovesWithItsState) {
  auto slice = leaf(torch::ones({2}));
  slice.mutable_grad() = torch::ones({2});
  AdamW first(one("w", slice));
  first.step();
  AdamW second(std::move(first));
  EXPECT_EQ(second.state("w").step.item<float>(), 1.0F);
}

#define EXPECT_REFUSED(expression, part) \
  EXPECT_THAT(                           \
      [&] { (void)(expression); }, ThrowsMessage<Error>(HasSubstr(part)))

TEST(AdamWRefuses, BadOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const NamedParameters none;
  EXPECT_REFUSED(
      AdamW(none, {.learning_rate = -0.1}),
      "[optim] AdamW: expected learning_rate to be finite and at least 0, "
      "found -0.1");
  EXPECT_REFUSED(AdamW(none, {.learning_rate = nan}), "found nan");
  EXPECT_REFUSED(AdamW(none, {.beta1 = 1.0}), "expected beta1 in [0, 1)");
  EXPECT_REFUSED(AdamW(none, {.beta2 = -0.5}), "found -0.5");
  EXPECT_REFUSED(AdamW(none, {.epsilon = -1.0}), "epsilon");
  EXPECT_REFUSED(AdamW(none, {.weight_decay = -1.0}), "weight_decay");
  EXPECT_REFUSED(
      AdamW(none, {.groups = {ParameterGroup{}}}), "at least one name pattern");
  EXPECT_REFUSED(
      AdamW(none, {.groups = {{.names = {"*"}, .learning_rate_scale = -1.0}}}),
      "learning_rate_scale of a group");
  EXPECT_REFUSED(
      AdamW(none, {.groups = {{.names = {"*"}, .weight_decay = nan}}}),
      "weight_decay of a group");
}

TEST(AdamWRefuses, ABadRateLaterAndKeepsTheOldOne) {
  AdamW adamw(NamedParameters{}, {.learning_rate = 0.5});
  EXPECT_REFUSED(adamw.set_learning_rate(-1.0), "found -1");
  EXPECT_EQ(adamw.learning_rate(), 0.5);
}

TEST(AdamWRefuses, CallsAfterItWasMovedFrom) {
  AdamW first(NamedParameters{}, {.learning_rate = 0.5});
  AdamW second(std::move(first));
  // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
  EXPECT_REFUSED(first.step(), "[optim] AdamW was moved from");
  EXPECT_REFUSED(first.names(), "[optim] AdamW was moved from");
  first = std::move(second);
  EXPECT_EQ(first.learning_rate(), 0.5);
}

TEST(AdamWRefuses, BadSlices) {
  auto twice = one("w", leaf(torch::ones({2})));
  twice.items.push_back(twice.items[0]);
  EXPECT_REFUSED(AdamW{twice}, "found \"w\" twice");
  EXPECT_REFUSED(AdamW{one("w", {})}, "found an undefined tensor");
  EXPECT_REFUSED(AdamW{one("w", torch::ones({0}))}, "at least one element");
  EXPECT_REFUSED(
      AdamW{one("w", torch::ones({4, 4}).t().slice(0, 1, 3))},
      "without gaps in memory");
  EXPECT_REFUSED(
      AdamW{one("w", leaf(torch::ones({2}, torch::kComplexFloat)))},
      "floating-point");
  EXPECT_REFUSED(AdamW{NamedParameters{}}.state("v"), "found \"v\"");
}

TEST(AdamWRefuses, BadGradientsBeforeAnythingChanged) {
  OptimizerTwin twin({"a", "b"}, {4, 4}, SliceMemory::kApart, 8);
  int published = 0;
  twin.slices.publish = [&] { ++published; };
  AdamW adamw(twin.slices);
  twin.set_gradients(/*missing=*/0.0);
  auto& b = twin.slices.items[1].slice;
  b.mutable_grad() = torch::ones({4}).to_sparse();

  EXPECT_REFUSED(adamw.step(), "expected a dense gradient of \"b\"");

  twin.expect_equal(0.0);
  EXPECT_EQ(adamw.state("a").step.item<float>(), 0.0F);
  EXPECT_EQ(published, 0);
  b.mutable_grad() = torch::ones({5});
  EXPECT_REFUSED(adamw.step(), "to have shape [4], found [5]");
}

}  // namespace
}  // namespace sherd
