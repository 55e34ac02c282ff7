// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/sgd.h>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sherd/base/error.h>
#include "support/optimizer_twin.h"

namespace sherd {
namespace {

using ::testing::HasSubstr;
using testing::OptimizerTwin;
using testing::SliceMemory;
using ::testing::ThrowsMessage;

struct SgdCase {
  const char* name;
  double momentum;
  bool nesterov;
  double weight_decay;
};

using Parameters = std::tuple<SgdCase, SliceMemory>;

class SgdParity : public ::testing::TestWithParam<Parameters> {};

TEST_P(SgdParity, EqualsTorchOverTwentySteps) {
  const auto& [options, memory] = GetParam();
  for (const double missing : {0.0, 0.4}) {
    OptimizerTwin twin(
        {"a.weight", "a.bias", "b.weight", "b.bias", "c"}, {300, 16, 77, 3, 1},
        memory, 1);
    Sgd ours(
        twin.slices,
        {.learning_rate = 0.05,
         .momentum = options.momentum,
         .nesterov = options.nesterov,
         .weight_decay = options.weight_decay,
         .groups = {{.names = {"*.bias"}, .weight_decay = 0.5}}});
    const auto theirs_options = [&](double decay) {
      return torch::optim::SGDOptions(0.05)
          .momentum(options.momentum)
          .nesterov(options.nesterov)
          .weight_decay(decay);
    };
    const auto& t = twin.twins;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(
        std::vector{t[0], t[2], t[4]},
        std::make_unique<torch::optim::SGDOptions>(
            theirs_options(options.weight_decay)));
    groups.emplace_back(
        std::vector{t[1], t[3]},
        std::make_unique<torch::optim::SGDOptions>(theirs_options(0.5)));
    torch::optim::SGD theirs(groups, theirs_options(options.weight_decay));
    for (int step = 0; step < 20; ++step) {
      twin.set_gradients(missing);
      ours.step();
      theirs.step();
    }
    twin.expect_equal();
    twin.expect_gaps_untouched();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    SgdParity,
    ::testing::Combine(
        ::testing::Values(
            SgdCase{"Plain", 0.0, false, 0.0},
            SgdCase{"Decay", 0.0, false, 0.1},
            SgdCase{"Momentum", 0.9, false, 0.1},
            SgdCase{"Nesterov", 0.9, true, 0.1}),
        ::testing::Values(
            SliceMemory::kApart,
            SliceMemory::kTight,
            SliceMemory::kAligned,
            SliceMemory::kDirtyGaps)),
    [](const auto& param) {
      return std::get<0>(param.param).name +
          testing::name_of(std::get<1>(param.param));
    });

TEST(Sgd, WorksWithoutSlicesAndPublishes) {
  int published = 0;
  NamedParameters none;
  none.publish = [&] { ++published; };
  Sgd sgd(none, {.momentum = 0.9});
  sgd.step();
  EXPECT_EQ(published, 1);
}

TEST(Sgd, KeepsMomentumAsLongAsThereIsNoGradient) {
  OptimizerTwin twin({"a", "b"}, {16, 16}, SliceMemory::kAligned, 2);
  Sgd sgd(twin.slices, {.momentum = 0.9});
  twin.set_gradients(/*missing=*/0.0);
  const auto gradient = twin.slices.items[1].slice.grad().clone();
  sgd.step();
  EXPECT_TRUE(torch::equal(sgd.momentum_buffer("b"), gradient));
  twin.slices.items[1].slice.mutable_grad().reset();
  sgd.step();
  EXPECT_TRUE(torch::equal(sgd.momentum_buffer("b"), gradient));
}

TEST(Sgd, UpdatesSlicesThatAreNotContiguous) {
  const auto values = torch::arange(24).to(torch::kFloat).view({2, 3, 2, 2});
  const auto ours =
      values.contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const auto theirs = values.clone().requires_grad_();
  NamedParameters slices;
  slices.items = {{"weight", ours}};
  Sgd sgd(slices, {.learning_rate = 0.5, .momentum = 0.9});
  torch::optim::SGD torch_sgd(
      {theirs}, torch::optim::SGDOptions(0.5).momentum(0.9));
  for (const auto format :
       {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    theirs.mutable_grad() = (values * values).clone();
    ours.mutable_grad() = theirs.grad().contiguous(format);
    sgd.step();
    torch_sgd.step();
    EXPECT_TRUE(torch::equal(ours, theirs));
  }
  EXPECT_EQ(sgd.momentum_buffer("weight").strides(), ours.strides());
}

TEST(Sgd, AGroupKnowsATiedParameterByAllOfItsNames) {
  const auto head = torch::ones({2}).requires_grad_();
  NamedParameters slices;
  slices.items = {{"head", head}};
  slices.tied_names = {{"embedding.weight", "head"}};
  Sgd sgd(
      slices,
      {.groups = {
           {.names = {"embedding.weight"}, .learning_rate_scale = 0.0}}});
  head.mutable_grad() = torch::ones({2});
  sgd.step();
  EXPECT_TRUE(torch::equal(head, torch::ones({2})));
}

TEST(SgdRefuses, BadOptions) {
  const NamedParameters none;
  const auto refused = [&](const SgdOptions& options, const char* part) {
    EXPECT_THAT(
        [&] { Sgd(none, options); }, ThrowsMessage<Error>(HasSubstr(part)));
  };
  refused({.learning_rate = -1.0}, "[optim] Sgd: expected learning_rate");
  refused({.momentum = -1.0}, "momentum to be finite and at least 0, found -1");
  refused({.nesterov = true}, "momentum above 0 with nesterov, found 0");
  refused({.weight_decay = -1.0}, "weight_decay");
  Sgd plain(none);
  EXPECT_THROW((void)plain.momentum_buffer("a"), Error);
}

TEST(SgdRefuses, CallsAfterItWasMovedFrom) {
  Sgd first(NamedParameters{});
  const Sgd second(std::move(first));
  EXPECT_THAT(
      // NOLINTNEXTLINE(bugprone-use-after-move): this is what is tested.
      [&] { first.step(); },
      ThrowsMessage<Error>(HasSubstr("[optim] Sgd was moved from")));
}

}  // namespace
}  // namespace sherd
