// SPDX-License-Identifier: Apache-2.0
//
// Values and gradients of replicas travel in the order of memory: right whatever
// it is, and refused where ranks differ in it.
#include "ddp/replica_parity.h"
#include "support/odd_layouts.h"
#include "support/ranks.h"

#include <functional>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateLayouts : public ::testing::TestWithParam<int> {};

OddLayouts without_gaps() { return OddLayouts(Gaps::kWithout); }

// Gradients whose mean over ranks is an integer, too: under no_sync() they add up
// before the mean is made.
torch::Tensor divisible_odd_loss(OddLayouts& model, int batch, int rank) {
  return odd_loss(model, batch, rank) * 12;
}

TEST_P(ReplicateLayouts, WhateverTheStridesNumbersAreThoseOfOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool view : {true, false}) {
      ReplicaParity options;
      options.micro_batches = 2;
      options.replicate.bucket_bytes = 300;
      options.replicate.gradient_as_bucket_view = view;
      expect_replica_parity<OddLayouts>(
          world, without_gaps, divisible_odd_loss, options);
    }
  }));
}

TEST_P(ReplicateLayouts, OptimizersOfLibTorchTrainAsInOneProcess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& step :
         {steps_of<torch::optim::AdamW>(
              torch::optim::AdamWOptions(1e-2).weight_decay(0.1)),
          steps_of<torch::optim::RMSprop>(
              torch::optim::RMSpropOptions(1e-2).momentum(0.9))}) {
      expect_replica_parity<OddLayouts>(
          world, without_gaps, odd_loss, {.steps = 4, .step = step});
    }
  }));
}

struct WithNothingImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  torch::Tensor nothing;
  WithNothingImpl() {
    linear = register_module("linear", torch::nn::Linear(6, 2));
    nothing = register_parameter("nothing", torch::zeros({0, 4}));
    fill_with_integers(*this);
  }
};
TORCH_MODULE(WithNothing);

TEST_P(ReplicateLayouts, SherdsOptimizersTrainBesideParametersWithoutElements) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    WithNothing model;
    auto ddp = replicate(*model, world);
    const auto named = ddp.named_parameters();
    ASSERT_EQ(named.items.size(), 2U);
    AdamW adamw(named, {.learning_rate = 0.1});
    const auto before = model->linear->weight.detach().clone();
    const auto y = model->linear->forward(integer_rows(0, world.rank(), 6));
    (y.sum() + model->nothing.sum()).backward();
    adamw.step();
    EXPECT_FALSE(torch::equal(model->linear->weight, before));
  }));
}

// Rank 0's first values go to all, and so do its buffers after a backward.
TEST_P(ReplicateLayouts, TheFirstValuesAreRankZeros) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto expected = without_gaps();
    auto model = without_gaps();
    const torch::NoGradGuard no_grad;
    for (const auto& tensors : {model->parameters(), model->buffers()}) {
      for (auto tensor : tensors) {
        tensor.add_(world.rank());
      }
    }
    const auto ddp = replicate(*model, world);
    expect_same_parameters(*model, unique_parameters(*expected));
    for (const auto& item : expected->named_buffers()) {
      expect_close(
          model->named_buffers()[item.key()], item.value(), 0.0, item.key());
    }
  }));
}

// The same hook over contiguous parameters gives the same averages.
TEST_P(ReplicateLayouts, HooksSeeParametersInTheOrderOfTheirIndices) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto hooks = [] {
      return std::vector<CommHookPtr>{
          compress(at::kBFloat16),
          power_sgd({.rank = 1, .start_step = 1, .compression_min = 0.1})};
    };
    for (std::size_t hook = 0; hook < hooks().size(); ++hook) {
      auto odd = without_gaps();
      auto plain = contiguous(without_gaps());
      auto odd_ddp = replicate(*odd, world, {.hook = hooks()[hook]});
      auto plain_ddp = replicate(*plain, world, {.hook = hooks()[hook]});
      for (int batch = 0; batch < 3; ++batch) {
        odd_loss(odd, batch, world.rank()).backward();
        odd_loss(plain, batch, world.rank()).backward();
        for (const auto& item : plain->named_parameters()) {
          expect_close(
              odd->named_parameters()[item.key()].grad(), item.value().grad(),
              1e-4, item.key());
        }
        odd->zero_grad();
        plain->zero_grad();
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateLayouts,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

class ReplicateStrides : public ::testing::TestWithParam<int> {};

// The last rank's module is changed by `differ` before all replicate.
template <typename Module>
void expect_refused(
    const World& world,
    Module module,
    const std::function<void(Module&)>& differ,
    const std::string& what,
    const std::string& here,
    const std::string& there) {
  const int last = world.size() - 1;
  if (world.rank() == last) {
    differ(module);
  }
  EXPECT_THAT(
      error_of([&] { (void)replicate(*module, world); }),
      AllOf(
          HasSubstr("ranks disagree on the model"),
          HasSubstr("rank 0 has " + what + " with strides " + here),
          HasSubstr(
              "rank " + std::to_string(last) + " has " + what +
              " with strides " + there)));
}

void to_channels_last(torch::nn::Conv2d& conv) {
  conv->weight.set_data(
      conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
}

torch::Tensor transposed(const torch::Tensor& tensor) {
  return tensor.detach().t().contiguous().t();
}

TEST_P(ReplicateStrides, RanksThatDifferAreRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_refused<torch::nn::Conv2d>(
        world, torch::nn::Conv2d(3, 4, 2), to_channels_last,
        "parameter weight [4, 3, 2, 2] Float", "[12, 4, 2, 1]",
        "[12, 1, 6, 3]");
    torch::nn::Linear linear(5, 3);
    linear->weight.requires_grad_(false);
    expect_refused<torch::nn::Linear>(
        world, linear,
        [](torch::nn::Linear& odd) {
          odd->weight.set_data(transposed(odd->weight));
        },
        "frozen parameter weight [3, 5] Float", "[5, 1]", "[1, 3]");
    torch::nn::Embedding embedding(
        torch::nn::EmbeddingOptions(5, 3).sparse(true));
    expect_refused<torch::nn::Embedding>(
        world, embedding,
        [](torch::nn::Embedding& odd) {
          odd->weight.set_data(transposed(odd->weight));
        },
        "parameter with sparse gradient weight [5, 3] Float", "[3, 1]",
        "[1, 5]");
    torch::nn::Linear buffered(2, 2);
    buffered->register_buffer("table", torch::zeros({4, 3}));
    expect_refused<torch::nn::Linear>(
        world, buffered,
        [](torch::nn::Linear& odd) {
          auto table = odd->named_buffers()["table"];
          table.set_data(transposed(table));
        },
        "buffer table [4, 3] Float", "[3, 1]", "[1, 4]");
    IntegerMlp fine;
    auto ddp = replicate(*fine, world);  // The world is as good as before.
    integer_loss(fine, 0, world.rank()).backward();
  }));
}

// Along a dimension of one element nothing lies.
TEST_P(ReplicateStrides, OtherNumbersForTheSamePlacesAreNoDifference) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [&] {
      torch::nn::Conv2d conv(3, 4, 1);
      fill_with_integers(*conv);
      if (world.rank() == world.size() - 1) {
        // As channels-last numbers them.
        conv->weight.set_data(conv->weight.detach().as_strided(
            conv->weight.sizes(), {3, 1, 3, 3}));
      }
      return conv;
    };
    expect_replica_parity<torch::nn::Conv2d>(
        world, make, [](torch::nn::Conv2d& conv, int batch, int rank) {
          return conv->forward(integer_rows(batch, rank, 12).view({2, 3, 2, 2}))
              .sum();
        });
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateStrides,
    ::testing::Values(2, 3),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
