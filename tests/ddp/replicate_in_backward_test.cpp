// SPDX-License-Identifier: Apache-2.0
//
// Replicas whose AdamW updates in backward hold the bits of those that update
// after it, and lose nothing when a backward fails.
#include <memory>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include "support/error_of.h"
#include "support/ranks.h"
#include "support/small_models.h"

namespace sherd::test {
namespace {

class ReplicateInBackward : public ::testing::TestWithParam<int> {};

// A layer that only some batches use.
struct DetourImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, rare{nullptr}, head{nullptr};
  DetourImpl() {
    torch::manual_seed(7);
    first = register_module("first", torch::nn::Linear(5, 7));
    rare = register_module("rare", torch::nn::Linear(7, 7));
    head = register_module("head", torch::nn::Linear(7, 3));
  }
  torch::Tensor forward(const torch::Tensor& x, bool detour) {
    const auto y = torch::tanh(first(x));
    return head(detour ? torch::tanh(rare(y)) : y);
  }
};
TORCH_MODULE(Detour);

// Rank 0 takes the detour in batch 1, all in batch 2, none else.
torch::Tensor detour_loss(Detour& model, int batch, const World& world) {
  const auto rows = torch::sin(torch::arange(20, torch::kFloat)
                                   .mul(0.1 * (1 + batch) + world.rank())
                                   .view({4, 5}));
  const bool detour = batch == 2 || (batch == 1 && world.rank() == 0);
  return model->forward(rows, detour).square().mean();
}

AdamWOptions options_of(bool in_backward) {
  AdamWOptions options;
  options.in_backward = in_backward;
  options.groups = {
      {.names = {"first.*"}, .learning_rate_scale = 0.5, .weight_decay = 0.0}};
  return options;
}

// Losses, then what is left of parameters and state.
std::vector<torch::Tensor> train(
    const World& world,
    const ReplicateOptions& replicate_options,
    bool in_backward) {
  constexpr int kSteps = 4;
  Detour model;
  auto ddp = replicate(*model, world, replicate_options);
  AdamW adamw(ddp.named_parameters(), options_of(in_backward));
  std::vector<torch::Tensor> seen;
  for (int step = 0; step < kSteps; ++step) {
    adamw.set_learning_rate(1e-2 / (1 + step));
    {
      const auto local = ddp.no_sync();
      detour_loss(model, 10 + step, world).backward();
    }
    auto loss = detour_loss(model, step, world);
    loss.backward();
    EXPECT_EQ(
        model->first->weight.grad().defined(),
        !in_backward || world.size() == 1);
    adamw.step();
    adamw.zero_grad();
    seen.push_back(loss.detach());
  }
  for (const auto& parameter : model->parameters()) {
    seen.push_back(parameter.detach().clone());
  }
  for (const auto& each : adamw.tensors({})) {
    seen.push_back(each.tensor.clone());
  }
  return seen;
}

void expect_same_bits(
    const std::vector<torch::Tensor>& found,
    const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i], expected[i])) << "tensor " << i;
  }
}

TEST_P(ReplicateInBackward, EqualsAStepAfterBackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    std::vector<ReplicateOptions> all(4);
    all[1].bucket_bytes = 64;
    all[1].first_bucket_bytes = 64;  // Learns another order.
    all[2].gradient_as_bucket_view = false;
    all[3].hook = compress(at::kBFloat16);
    for (const auto& options : all) {
      expect_same_bits(
          train(world, options, true), train(world, options, false));
    }
  }));
}

// The next backward averages what no_sync() has left in `.grad()`, which a rank cannot hand over
// before.
TEST_P(ReplicateInBackward, NobodyTakesSumsWhileMicroBatchesWaitForThem) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Detour model;
    auto ddp = replicate(*model, world);
    const auto named = ddp.named_parameters();
    const auto can_take = [&] {
      return named.update_in_backward(
                 {.names = {"first.weight"}, .update = [](auto...) {}}) !=
          nullptr;
    };
    const bool synchronises = world.size() > 1;
    EXPECT_EQ(can_take(), synchronises);
    {
      const auto local = ddp.no_sync();
      detour_loss(model, 0, world).backward();
    }
    EXPECT_FALSE(can_take());
    detour_loss(model, 2, world).backward();
    EXPECT_EQ(can_take(), synchronises);
  }));
}

TEST_P(ReplicateInBackward, ABackwardThatFailsOnOneRankChangesNothing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Plain LibTorch.
    }
    Detour model;
    auto ddp = replicate(*model, world);
    AdamW adamw(ddp.named_parameters(), options_of(true));
    const auto before = model->head->weight.detach().clone();
    const auto x = torch::tanh(model->first(torch::ones({2, 5})));
    if (world.rank() == 1) {
      x.register_hook([](const torch::Tensor&) -> torch::Tensor {
        throw std::runtime_error("poisoned by the test");
      });
    }
    EXPECT_THAT(
        error_of([&] { model->head(x).sum().backward(); }),
        ::testing::HasSubstr("poisoned by the test"));
    EXPECT_TRUE(torch::equal(model->head->weight, before));
    EXPECT_EQ(adamw.state("head.weight").step.item<float>(), 0.0F);
    detour_loss(model, 0, world).backward();
    EXPECT_FALSE(torch::equal(model->head->weight, before));
    EXPECT_EQ(adamw.state("head.weight").step.item<float>(), 1.0F);
  }));
}

TEST_P(ReplicateInBackward, AParameterHasOneOptimizerThere) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    Detour model;
    auto ddp = replicate(*model, world);
    auto first =
        std::make_unique<AdamW>(ddp.named_parameters(), options_of(true));
    EXPECT_THAT(
        error_of([&] { AdamW(ddp.named_parameters(), options_of(true)); }),
        ::testing::HasSubstr("updated in backward by another optimizer"));
    first.reset();
    detour_loss(model, 2, world).backward();
    EXPECT_TRUE(model->rare->weight.grad().defined());
    AdamW(ddp.named_parameters(), options_of(true));
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateInBackward,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
