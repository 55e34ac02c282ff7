// SPDX-License-Identifier: Apache-2.0
//
// What replicas refuse, on every rank, and that they go on afterwards.
#include "ddp/replica_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ReplicateError : public ::testing::TestWithParam<int> {};

TEST_P(ReplicateError, T59DifferentModelsAreRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const int last = world.size() - 1;
    const bool odd = world.rank() == last;
    {
      Chain model(odd ? 3 : 2, 4);
      EXPECT_THAT(
          error_of([&] { (void)replicate(*model, world); }),
          AllOf(HasSubstr("layers.2"), HasSubstr(std::to_string(last))));
    }
    {
      torch::nn::Linear model(odd ? 5 : 4, 3);
      EXPECT_THAT(
          error_of([&] { (void)replicate(*model, world); }),
          AllOf(HasSubstr("weight"), HasSubstr("[3, 5]"), HasSubstr("[3, 4]")));
    }
    {
      torch::nn::Linear model(4, 3);
      model->to(odd ? torch::kDouble : torch::kFloat);
      EXPECT_THAT(
          error_of([&] { (void)replicate(*model, world); }),
          HasSubstr("Double"));
    }
    {
      torch::nn::BatchNorm1d model(
          torch::nn::BatchNormOptions(3).track_running_stats(!odd));
      EXPECT_THAT(
          error_of([&] { (void)replicate(*model, world); }),
          HasSubstr("running_mean"));
    }
    IntegerMlp fine;
    auto ddp = replicate(*fine, world);  // The world is as good as before.
    integer_loss(fine, 0, world.rank()).backward();
  }));
}

TEST_P(ReplicateError, T59WhatCannotBeReplicatedIsNamed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Linear frozen(2, 2);
    for (auto& parameter : frozen->parameters()) {
      parameter.requires_grad_(false);
    }
    EXPECT_THAT(
        error_of([&] { (void)replicate(*frozen, world); }),
        HasSubstr("at least one parameter that requires grad"));
    IntegerMlp model;
    EXPECT_THAT(
        error_of([&] {
          (void)replicate(*model, world, {.ignored = {"thrid.bias"}});
        }),
        HasSubstr("'thrid.bias'"));
    EXPECT_THAT(
        error_of([&] { (void)replicate(*model, world, {.bucket_bytes = 0}); }),
        HasSubstr("bucket_bytes"));
    auto ddp = replicate(*model, world);
    EXPECT_THAT(
        error_of([&] { (void)replicate(*model, world); }),
        AllOf(HasSubstr("first.weight"), HasSubstr("another handle")));
  }));
}

TEST_P(ReplicateError, ABackwardThatFailsOnOneRankFailsOnAllAndTheNextIsRight) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6), reference(3, 6);
    const auto leaves = unique_parameters(*reference);
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      return chain->forward(integer_rows(batch, rank, 6)).sum();
    };
    auto ddp = replicate(
        *model, world, {.bucket_bytes = 300, .first_bucket_bytes = 8});
    for (int batch = 0; batch < 3; ++batch) {
      auto x = model->layer(0).forward(integer_rows(batch, world.rank(), 6));
      if (world.rank() == batch % world.size()) {
        x.register_hook([](const torch::Tensor&) -> torch::Tensor {
          throw std::runtime_error("poisoned by the test");
        });
      }
      const auto loss = model->layer(1).forward(x).sum();
      EXPECT_THAT(
          error_of([&] { loss.backward(); }),
          HasSubstr("poisoned by the test"));
      for (const auto& parameter : model->parameters()) {
        EXPECT_FALSE(parameter.grad().defined());
      }
      reference_backward<Chain>(reference, leaves, pass, batch, world);
      pass(model, batch, world.rank()).backward();
      expect_same_gradients(*model, leaves);
      model->zero_grad();
      reference->zero_grad();
    }
  }));
}

TEST_P(ReplicateError, T60ASecondDerivativeIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    const auto loss = integer_loss(model, 0, world.rank());
    EXPECT_THAT(
        error_of([&] {
          loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
        }),
        AllOf(HasSubstr("create_graph"), HasSubstr("third.weight")));
    integer_loss(model, 1, world.rank()).backward();
    EXPECT_TRUE(model->first->weight.grad().defined());
  }));
}

TEST_P(ReplicateError, WhatChangesBehindItsBackIsNoticed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    model->second->bias.requires_grad_(false);
    auto ddp = replicate(*model, world);
    model->second->bias.requires_grad_(true);
    EXPECT_THAT(
        error_of([&] { integer_loss(model, 0, world.rank()); }),
        AllOf(HasSubstr("second.bias"), HasSubstr("frozen")));
    model->second->bias.requires_grad_(false);
    model->third->weight.set_data(torch::ones({1, 5}));
    EXPECT_THAT(
        error_of([&] { integer_loss(model, 0, world.rank()); }),
        AllOf(HasSubstr("third.weight"), HasSubstr("another storage")));
  }));
}

TEST_P(ReplicateError, CallsOfAHandleThatWasMovedFromAreAClearError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp model;
    auto ddp = replicate(*model, world);
    const auto moved = std::move(ddp);
    const auto named = HasSubstr("DistributedDataParallel was moved from");
    // NOLINTBEGIN(bugprone-use-after-move): this is what is tested.
    EXPECT_THAT(error_of([&] { (void)ddp.named_parameters(); }), named);
    EXPECT_THAT(error_of([&] { (void)ddp.no_sync(); }), named);
    ddp.close();  // There is nothing to close.
    // NOLINTEND(bugprone-use-after-move)
    integer_loss(model, 0, world.rank()).backward();
    EXPECT_EQ(moved.report().backwards, 1);
  }));
}

// Each rank would write the rows that it looks up.
TEST_P(ReplicateError, AnEmbeddingWithMaxNormIsNamed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).max_norm(0.5)));
    auto ddp = replicate(*model, world);
    const auto before = model->parameters()[0].detach().clone();
    EXPECT_THAT(
        error_of([&] { model->forward(torch::tensor({world.rank()})); }),
        AllOf(
            HasSubstr("would write parameter 0.weight"),
            HasSubstr("leave max_norm out of the Embedding")));
    EXPECT_TRUE(torch::equal(model->parameters()[0], before));
  }));
}

// What a handle uses when it ends must be there until the process ends.
TEST(ReplicateErrors, AStaticHandleEndsWithTheProcess) {
  EXPECT_EXIT(
      {
        static std::optional<IntegerMlp> model;
        static std::optional<World> world;
        static std::optional<DistributedDataParallel> handle;
        model.emplace();
        world.emplace(World::single());
        handle.emplace(
            replicate(**model, *world, {.param_dtype = at::kBFloat16}));
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ReplicateError,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
