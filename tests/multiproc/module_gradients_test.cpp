// SPDX-License-Identifier: Apache-2.0
//
// What LibTorch does to gradients by way of the module, whose parameters have
// none while they are sharded: zero_grad() clears those of the slices, reading
// is an error that names the remedy, and nothing goes wrong in silence.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <latch>
#include <limits>
#include <thread>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ModuleGradients : public testing::TestWithParam<int> {};

torch::Tensor layers_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

// A sharded model beside one process, both under SGD.
struct Twins {
  World world;
  FullyShardOptions options;
  Chain reference{3, 6}, model{3, 6};
  Slicing slicing;
  std::vector<NamedLeaf> leaves;
  FullyShardedDataParallel fsdp;
  torch::optim::SGD reference_sgd, sgd;

  Twins(const World& of, Strategy strategy)
      : world(of),
        options({.strategy = strategy}),
        slicing(*reference, world, options),
        leaves(unique_parameters(*reference)),
        fsdp(fully_shard(*model, world, options)),
        reference_sgd(tensors_of(leaves), 0.25),
        sgd(fsdp.parameters(), 0.25) {}

  void backward_reference(int batch) {
    reference_backward<Chain>(reference, leaves, layers_loss, batch, world);
  }
  void backward(int batch) {
    layers_loss(model, batch, world.rank()).backward();
  }
  void expect_equal_gradients() {
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }
  void step() {
    reference_sgd.step();
    sgd.step();
    fsdp.publish();
  }
};

enum class Zero { kBeforeForward, kBeforeBackward, kAfterStep };

TEST_P(ModuleGradients, ZeroGradOfTheModuleTrainsAsOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      for (const auto zero :
           {Zero::kBeforeForward, Zero::kBeforeBackward, Zero::kAfterStep}) {
        Twins twins(world, strategy);
        const auto zero_if = [&](Zero now) {
          if (zero == now) {
            twins.model->zero_grad();
          }
        };
        for (int batch = 0; batch < 3; ++batch) {
          twins.reference->zero_grad();
          twins.backward_reference(batch);
          zero_if(Zero::kBeforeForward);
          auto loss = layers_loss(twins.model, batch, world.rank());
          zero_if(Zero::kBeforeBackward);
          loss.backward();
          twins.expect_equal_gradients();
          twins.step();
          zero_if(Zero::kAfterStep);
        }
        expect_parameters(twins.leaves, *twins.model, twins.fsdp, 0.0);
      }
    }
  }));
}

void expect_no_gradients(const FullyShardedDataParallel& fsdp) {
  for (const auto& slice : fsdp.parameters()) {
    EXPECT_FALSE(slice.grad().defined());
  }
}

TEST_P(ModuleGradients, WhatTheModuleClearsIsClearAtOnceAndNothingElseIs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Twins twins(world, Strategy::kFullShard);
    // A step that is left out: the optimizer finds no gradients.
    twins.backward(0);
    twins.model->zero_grad();
    expect_no_gradients(twins.fsdp);
    twins.sgd.step();
    twins.fsdp.publish();
    expect_parameters(twins.leaves, *twins.model, twins.fsdp, 0.0);
    // One parameter's; the others add up.
    twins.backward(0);
    twins.model->head->bias.mutable_grad().reset();
    twins.backward_reference(0);
    twins.reference->head->bias.mutable_grad().reset();
    twins.backward(1);
    twins.backward_reference(1);
    twins.expect_equal_gradients();
    // What no_sync() has added up goes, too.
    if (world.size() > 1) {
      const auto scope = twins.fsdp.no_sync();
      twins.backward(2);
    }
    twins.model->zero_grad();
    twins.reference->zero_grad();
    twins.backward(3);
    twins.backward_reference(3);
    twins.expect_equal_gradients();
  }));
}

TEST_P(ModuleGradients, CopiesOfWhatTheModuleShowsClearNothingLater) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Twins twins(world, Strategy::kFullShard);
    twins.backward(0);
    std::vector<torch::Tensor> held;
    for (const auto& parameter : twins.model->parameters()) {
      held.push_back(parameter.grad());
    }
    twins.model->zero_grad();
    twins.backward(1);
    twins.backward_reference(1);
    twins.expect_equal_gradients();
    held.clear();
    twins.expect_equal_gradients();
    // A graph that is run twice, and hooks that come later, add up as ever.
    twins.model->head->bias.register_hook(
        [](const torch::Tensor& gradient) { return gradient * 2; });
    twins.reference->head->bias.register_hook(
        [](const torch::Tensor& gradient) { return gradient * 2; });
    auto loss = layers_loss(twins.model, 2, world.rank());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    twins.backward_reference(2);
    twins.backward_reference(2);
    twins.expect_equal_gradients();
    held.push_back(twins.model->head->weight.grad());
    twins.fsdp.close();
    EXPECT_FALSE(twins.model->head->weight.grad().defined());
  }));
}

// A backward of something else that another thread runs for as long as this lives.
class PlainBackwardElsewhere {
 public:
  PlainBackwardElsewhere() { began_.wait(); }
  ~PlainBackwardElsewhere() { end_.count_down(); }
  PlainBackwardElsewhere(const PlainBackwardElsewhere&) = delete;
  PlainBackwardElsewhere& operator=(const PlainBackwardElsewhere&) = delete;

 private:
  void run() {
    const auto weight = torch::ones({3}, torch::requires_grad());
    weight.register_hook([this](const torch::Tensor&) {
      began_.count_down();
      end_.wait();
    });
    weight.sum().backward();
  }

  std::latch began_{1}, end_{1};
  std::jthread thread_{[this] { run(); }};
};

TEST_P(ModuleGradients, ABackwardOfAnotherThreadThatIsNotTheModelsTakesNone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      Twins twins(world, strategy);
      {
        const PlainBackwardElsewhere elsewhere;
        twins.backward(0);
        EXPECT_TRUE(twins.model->head->bias.grad().defined());
        twins.model->zero_grad();
        expect_no_gradients(twins.fsdp);
        twins.backward(1);
      }
      twins.backward_reference(1);
      twins.expect_equal_gradients();
    }
  }));
}

TEST_P(ModuleGradients, T42ReadingThemNamesTheRemedy) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    Twins twins(world, Strategy::kFullShard);
    const auto parameters = twins.model->parameters();
    EXPECT_FALSE(parameters[0].grad().defined());
    twins.backward(0);
    twins.backward_reference(0);
    const auto clip = AllOf(
        HasSubstr("parameter layers.0.weight"),
        HasSubstr("call fsdp.clip_grad_norm() instead"));
    for (const double p : {0.0, 1.0, 2.0, kInfinity}) {
      EXPECT_THAT(
          error_of(
              [&] { torch::nn::utils::clip_grad_norm_(parameters, 1.0, p); }),
          clip)
          << p;
    }
    EXPECT_THAT(
        error_of([&] { torch::nn::utils::clip_grad_value_(parameters, 1.0); }),
        clip);
    const auto read = AllOf(
        HasSubstr("the gradient of parameter head.bias"),
        HasSubstr("fsdp.parameters()"));
    const auto& gradient = twins.model->head->bias.grad();
    EXPECT_EQ(gradient.sizes(), twins.model->head->bias.sizes());
    EXPECT_THAT(error_of([&] { (void)gradient.item<float>(); }), read);
    EXPECT_THAT(error_of([&] { (void)gradient.detach().sum(); }), read);
    EXPECT_THAT(error_of([&] { (void)gradient.const_data_ptr(); }), read);
    // Also because it would write parameters.
    torch::optim::SGD wrong(parameters, 0.25);
    EXPECT_THAT(
        error_of([&] { wrong.step(); }),
        AllOf(
            HasSubstr("sharded"),
            HasSubstr("make optimizers over fsdp.parameters()")));
    torch::optim::RMSprop another(parameters);
    EXPECT_THAT(
        error_of([&] { another.step(); }),
        HasSubstr("make optimizers over fsdp.parameters()"));
    // They were refused before anything changed.
    twins.expect_equal_gradients();
    EXPECT_THAT(
        error_of([&] { twins.model->zero_grad(/*set_to_none=*/false); }),
        HasSubstr("not with set_to_none = false"));
    twins.model->zero_grad();
    expect_no_gradients(twins.fsdp);
    twins.reference->zero_grad();
    twins.backward(0);
    twins.backward_reference(0);
    twins.expect_equal_gradients();
    EXPECT_NEAR(
        twins.fsdp.clip_grad_norm(1e9),
        torch::nn::utils::clip_grad_norm_(tensors_of(twins.leaves), 1e9), 1e-3);
    twins.step();
    expect_parameters(twins.leaves, *twins.model, twins.fsdp, 0.0);
  }));
}

TEST_P(ModuleGradients, WhatNoRankUsedShowsNone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    model->layer(0).forward(integer_rows(0, world.rank(), 6)).sum().backward();
    EXPECT_TRUE(model->layer(0).weight.grad().defined());
    EXPECT_FALSE(model->layer(1).weight.grad().defined());
    EXPECT_FALSE(model->head->bias.grad().defined());
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ModuleGradients,
    testing::Values(1, 2, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
