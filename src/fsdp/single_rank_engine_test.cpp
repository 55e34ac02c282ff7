// SPDX-License-Identifier: Apache-2.0
#include "fsdp/single_rank_engine.h"

#include <latch>
#include <thread>
#include <gmock/gmock.h>
#include "fsdp/testing.h"
#include "support/optional_gradient.h"

namespace sherd::fsdp {
namespace {

using ::testing::HasSubstr;
using testing::loss_of;
using testing::Net;
using testing::rows_of;

std::shared_ptr<SingleRankEngine> start(const torch::nn::Module& module) {
  auto engine = std::make_shared<SingleRankEngine>(
      build_units(module, 1, {.units = units::optional(units::by_name("*"))}));
  engine->start();
  return engine;
}

TEST(SingleRankEngine, TrainsBitForBitAsPlainLibTorch) {
  Net plain;
  Net net;
  const auto engine = start(*net);
  std::vector<at::Tensor> slices;
  const auto named = engine->named_parameters();
  for (const auto& item : named.items) {
    slices.push_back(item.slice);
  }
  torch::optim::SGD plain_sgd(plain->parameters(), 0.1);
  torch::optim::SGD sgd(slices, 0.1);
  for (int step = 0; step < 4; ++step) {
    const auto x = rows_of(step, 0, 6);
    const auto expected = loss_of(plain, x);
    const auto found = loss_of(net, x);
    EXPECT_TRUE(torch::equal(found, expected));
    expected.backward();
    found.backward();
    plain_sgd.step();
    sgd.step();
    plain_sgd.zero_grad();
    sgd.zero_grad();
  }
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(torch::equal(item.value(), net->named_parameters()[item.key()]))
        << item.key();
  }
}

// Closing warns of an idle optimizer, and divided by the number of parameters
// that were trainable at first.
TEST(SingleRankEngine, WhatWasFrozenAltogetherMayBeThawed) {
  Net net;
  for (auto& parameter : net->parameters()) {
    parameter.set_requires_grad(false);
  }
  const auto engine = start(*net);
  net->third->weight.set_requires_grad(true);
  loss_of(net, rows_of(0, 0, 6)).backward();
  engine->close();
}

// LibTorch has one place for such a hook in a parameter, where the engine's is.
class CountingHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit CountingHook(int* calls) : calls_(calls) {}
  void operator()(const at::Tensor&) override { ++*calls_; }

 private:
  int* const calls_;
};

TEST(SingleRankEngine, AHookThatAUserSetsOnAParameterKeepsNoGradient) {
  for (const bool thawed : {false, true}) {
    Net net;
    auto& weight = net->third->weight;
    for (auto& parameter : net->parameters()) {
      parameter.set_requires_grad(!thawed);
    }
    const auto engine = start(*net);
    weight.set_requires_grad(true);
    int calls = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(
        weight, std::make_unique<CountingHook>(&calls));
    loss_of(net, rows_of(0, 0, 6)).backward();
    EXPECT_EQ(calls, 1);
    const auto named = engine->named_parameters();
    const auto slice =
        std::ranges::find(named.items, "third.weight", &NamedParameter::name);
    EXPECT_TRUE(slice->slice.grad().defined());
    engine->close();
  }
}

TEST(SingleRankEngine, SlicesShareTheMemoryOfParameters) {
  const Net net;
  const auto engine = start(*net);
  const auto named = engine->named_parameters();
  const auto parameters = net->named_parameters();
  for (const auto& item : named.items) {
    const auto& parameter = parameters[item.name];
    EXPECT_EQ(item.slice.const_data_ptr(), parameter.const_data_ptr());
    EXPECT_EQ(item.slice.dim(), 1);
    EXPECT_EQ(item.slice.requires_grad(), parameter.requires_grad());
    EXPECT_TRUE(item.slice.is_leaf());
  }
}

TEST(SingleRankEngine, GradientsAccumulateInSlicesNotInParameters) {
  Net net;
  const auto engine = start(*net);
  const auto x = rows_of(0, 0, 3);
  loss_of(net, x).backward();
  const auto named = engine->named_parameters();
  const auto once = named.items[1].slice.grad().clone();
  loss_of(net, x).backward();
  EXPECT_TRUE(torch::equal(named.items[1].slice.grad(), once * 2));
  // Those of the module show that there are some, and no numbers.
  EXPECT_EQ(net->first->weight.grad().sizes(), net->first->weight.sizes());
  EXPECT_THROW((void)net->first->weight.grad().sum(), Error);
  EXPECT_FALSE(net->offset.grad().defined());
}

// A backward of the last layer that calls `added` after it has added to that layer's gradients.
void backward_of_last_layer(Net& net, const std::function<void()>& added) {
  auto x = torch::ones({2, net->third->options.in_features()}).requires_grad_();
  x = x * 1;
  x.register_hook([&](const torch::Tensor&) { added(); });
  net->third(x).sum().backward();
}

TEST(SingleRankEngine, ShowsGradientsWhenTheLastOfTwoBackwardsHasEnded) {
  Net net;
  const auto engine = start(*net);
  const auto slices = engine->named_parameters();
  const auto shown = [&] { return net->third->weight.grad().defined(); };
  std::latch both(1);
  std::latch end(1);
  std::jthread other;
  backward_of_last_layer(net, [&] {
    other = std::jthread([&] {
      backward_of_last_layer(net, [&] {
        both.count_down();
        end.wait();
      });
    });
    both.wait();
  });
  EXPECT_FALSE(shown());  // The other one adds to it, as far as anybody knows.
  end.count_down();
  other.join();
  EXPECT_TRUE(shown());
  net->zero_grad();
  for (const auto& item : slices.items) {
    EXPECT_FALSE(item.slice.grad().defined()) << item.name;
  }
}

TEST(SingleRankEngine, AddsUpWhatTwoThreadsBring) {
  Net net;
  const auto engine = start(*net);
  constexpr int kBackwards = 200;
  const auto several = [&net] {
    for (int i = 0; i < kBackwards; ++i) {
      backward_of_last_layer(net, [] {});
    }
  };
  std::jthread other(several);
  several();
  other.join();
  for (const auto& item : engine->named_parameters().items) {
    if (item.name == "third.bias") {
      EXPECT_EQ(item.slice.grad().min().item<double>(), 4 * kBackwards);
    }
  }
  net->zero_grad();
  EXPECT_FALSE(engine->named_parameters().items.back().slice.grad().defined());
}

TEST(SingleRankEngine, AnUndefinedGradientChangesNone) {
  torch::nn::Module module("m");
  const auto weight = module.register_parameter("weight", torch::ones({7}));
  const auto engine = start(module);
  const auto slice = engine->named_parameters().items[0].slice;
  test::sum_with(weight, test::Gradient::kOnes).backward();
  test::sum_with(weight, test::Gradient::kUndefined).backward();
  EXPECT_TRUE(torch::equal(slice.grad(), torch::ones({7})));
  EXPECT_TRUE(weight.grad().defined());  // Shown again.
}

TEST(SingleRankEngine, ClipsAsLibTorch) {
  Net plain;
  Net net;
  const auto engine = start(*net);
  const auto x = rows_of(1, 0, 5);
  loss_of(plain, x).backward();
  loss_of(net, x).backward();
  const double norm = engine->clip_grad_norm(0.01, {});
  EXPECT_NEAR(
      norm, torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.01),
      1e-5 * norm);
  EXPECT_NEAR(engine->clip_grad_norm(1e9, {}), 0.01, 1e-5);
}

TEST(SingleRankEngine, SparseGradientsBecomeDense) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  const auto engine = start(*table);
  table(torch::tensor({2, 2, 5})).sum().backward();
  const auto grad = engine->named_parameters().items[0].slice.grad();
  EXPECT_FALSE(grad.is_sparse());
  EXPECT_EQ(grad.view({10, 3})[2][0].item<double>(), 2);
  EXPECT_EQ(grad.sum().item<double>(), 9);
}

TEST(SingleRankEngine, ParametersThatAreNotContiguousKeepTheirValues) {
  torch::nn::Module module("m");
  const auto weight =
      module.register_parameter("weight", torch::arange(6.0).view({2, 3}).t());
  const auto engine = start(module);
  EXPECT_TRUE(
      torch::equal(weight.detach(), torch::arange(6.0).view({2, 3}).t()));
  EXPECT_TRUE(torch::equal(
      engine->named_parameters().items[0].slice.detach(),
      torch::tensor({0.0, 3.0, 1.0, 4.0, 2.0, 5.0})));
}

TEST(SingleRankEngine, EmptyParametersHaveNoSlice) {
  torch::nn::Module module("m");
  module.register_parameter("none", torch::empty({0}));
  module.register_parameter("one", torch::ones({1}));
  const auto engine = start(module);
  ASSERT_EQ(engine->named_parameters().items.size(), 1U);
  EXPECT_EQ(engine->named_parameters().items[0].name, "one");
}

TEST(SingleRankEngine, AReplacedStorageIsNamedInBackward) {
  Net net;
  const auto engine = start(*net);
  net->second->weight.set_data(net->second->weight.detach().clone());
  try {
    loss_of(net, rows_of(0, 0, 2)).backward();
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("second.weight"));
  }
}

TEST(SingleRankEngine, SummonIsAScopeOverTheParametersThemselves) {
  const Net net;
  const auto engine = start(*net);
  EXPECT_THROW(engine->summoned("first.weight"), Error);
  engine->begin_summon({});
  EXPECT_THROW(engine->begin_summon({}), Error);
  EXPECT_EQ(
      engine->summoned("first.weight").const_data_ptr(),
      net->first->weight.const_data_ptr());
  EXPECT_THROW(engine->summoned("nothing"), Error);
  engine->end_summon();
  engine->begin_summon({.read_only = true});
  const auto before = net->first->weight.detach().clone();
  engine->summoned("first.weight").zero_();
  EXPECT_TRUE(torch::equal(net->first->weight, before));
  engine->end_summon();
  EXPECT_THROW(engine->summoned("first.weight"), Error);
}

TEST(SingleRankEngine, ClosingGivesGradientsBackToParameters) {
  Net net;
  const auto engine = start(*net);
  engine->close();
  engine->close();
  loss_of(net, rows_of(0, 0, 2)).backward();
  EXPECT_TRUE(net->first->weight.grad().defined());
}

}  // namespace
}  // namespace sherd::fsdp
