// SPDX-License-Identifier: Apache-2.0
//
// summon_full_parameters(): reading and writing whole parameters (T43).
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <optional>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>

namespace sherd::test {
namespace {

using testing::HasSubstr;

class Summon : public testing::TestWithParam<int> {};

torch::Tensor chain_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

constexpr Strategy kAll[] = {
    Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard};

TEST_P(Summon, T43EveryRankReadsTheWholeParameters) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      auto fsdp = fully_shard(*model, world, options);
      auto scope = fsdp.summon_full_parameters();
      for (const auto& item : reference->named_parameters()) {
        const auto expected = item.value().detach();
        expect_close(
            model->named_parameters()[item.key()].detach(), expected, 0.0,
            item.key());
        const auto plain = scope.tensor(item.key());
        expect_close(plain, expected, 0.0, item.key());
        EXPECT_FALSE(plain.requires_grad());
        EXPECT_NE(plain.data_ptr(), nullptr);  // Raw access is fine.
      }
      EXPECT_THAT(
          error_of([&] { (void)scope.tensor("layers.9.weight"); }),
          HasSubstr("no parameter is named 'layers.9.weight'"));
    }
  }));
}

TEST_P(Summon, T43WritesOnAllRanksAreKept) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      auto fsdp = fully_shard(*model, world, options);
      const auto slice = fsdp.parameters().front();
      const auto write = [](torch::Tensor weight, torch::Tensor bias) {
        const torch::NoGradGuard no_grad;
        weight.mul_(2).add_(1);
        bias.fill_(3);
      };
      write(reference->layer(0).weight, reference->layer(2).bias);
      {
        auto scope = fsdp.summon_full_parameters();
        // One through the parameter itself, one through the scope.
        write(model->layer(0).weight, scope.tensor("layers.2.bias"));
      }
      expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
      const auto x = integer_rows(0, world.rank(), 6);
      expect_close(
          model->forward(x).detach(), reference->forward(x).detach(), 0.0,
          "forward");
      EXPECT_TRUE(slice.is_same(fsdp.parameters().front()));
    }
  }));
}

TEST_P(Summon, T43TrainingGoesOnAfterAWrite) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    auto fsdp = fully_shard(*model, world);
    const auto leaves = unique_parameters(*reference);
    const auto step_reference = sign_steps()(tensors_of(leaves));
    const auto step_shards = sign_steps()(fsdp.parameters());
    for (int batch = 0; batch < 3; ++batch) {
      reference_backward<Chain>(reference, leaves, chain_loss, batch, world);
      chain_loss(model, batch, world.rank()).backward();
      step_reference();
      step_shards();
      const torch::NoGradGuard no_grad;
      auto scope = fsdp.summon_full_parameters();  // Publishes first.
      expect_close(
          scope.tensor("head.weight"), reference->head->weight.detach(), 0.0,
          "head.weight");
      model->head->weight.add_(1);
      reference->head->weight.add_(1);
    }
    expect_parameters(leaves, *model, fsdp, 0.0);
  }));
}

TEST_P(Summon, T43GradientsOfTheShardsSurviveAScope) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    const Slicing slicing(*reference, world, {});
    auto fsdp = fully_shard(*model, world);
    const auto leaves = unique_parameters(*reference);
    reference_backward<Chain>(reference, leaves, chain_loss, 0, world);
    chain_loss(model, 0, world.rank()).backward();
    {
      auto scope = fsdp.summon_full_parameters({.read_only = true});
    }
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }));
}

// The rule for whatever one rank alone does with a model.
TEST_P(Summon, InAScopeOfAllRanksOneMayEvaluateAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto kind : {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      FullyShardOptions options;
      options.exchange = kind;
      Chain reference(3, 6), model(3, 6);
      auto fsdp = fully_shard(*model, world, options);
      const auto leaves = unique_parameters(*reference);
      const auto step_reference = sign_steps()(tensors_of(leaves));
      const auto step_shards = sign_steps()(fsdp.parameters());
      for (int batch = 0; batch < 3; ++batch) {
        reference_backward<Chain>(reference, leaves, chain_loss, batch, world);
        chain_loss(model, batch, world.rank()).backward();
        step_reference();
        step_shards();
        const auto scope = fsdp.summon_full_parameters({.read_only = true});
        if (world.rank() == batch % world.size()) {
          const torch::NoGradGuard no_grad;
          expect_close(
              chain_loss(model, 9, 0), chain_loss(reference, 9, 0), 0.0,
              "evaluation");
        }
      }
      expect_parameters(leaves, *model, fsdp, 0.0);
    }
  }));
}

TEST_P(Summon, T43InAReadOnlyScopeWritesAreRefused) {
  if (GetParam() == 1) {
    return;  // There the parameters are the model's own.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    auto fsdp = fully_shard(*model, world);
    {
      auto scope = fsdp.summon_full_parameters({.read_only = true});
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(
          error_of([&] { model->layer(1).weight.zero_(); }),
          HasSubstr("would write parameter layers.1.weight, but the summon "
                    "scope was opened read_only"));
      scope.tensor("layers.1.bias").fill_(9);  // Its own copy: lost.
    }
    expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
  }));
}

TEST_P(Summon, T43WritesOutsideAScopeNameTheParameter) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    const torch::NoGradGuard no_grad;
    auto& weight = model->layer(1).weight;
    EXPECT_THAT(
        error_of([&] { weight.add_(1); }),
        HasSubstr("would write parameter layers.1.weight"));
    EXPECT_THAT(
        error_of([&] { model->layer(2).bias.data().zero_(); }),
        HasSubstr("layers.2.bias"));
    EXPECT_THAT(
        error_of([&] { weight[2].fill_(1); }), HasSubstr("layers.1.weight"));
    EXPECT_THAT(
        error_of([&] { torch::nn::init::ones_(weight); }),
        HasSubstr("summon_full_parameters()"));
  }));
}

// Each rank would write the rows that it looks up.
TEST_P(Summon, AnEmbeddingWithMaxNormIsNamed) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).max_norm(0.5)));
    fill_with_integers(*model);
    auto fsdp = fully_shard(*model, world);
    EXPECT_THAT(
        error_of([&] { model->forward(torch::tensor({world.rank()})); }),
        testing::AllOf(
            HasSubstr("would write parameter 0.weight"),
            HasSubstr("leave max_norm out of the Embedding")));
  }));
}

TEST_P(Summon, T43AScopeInAScopeIsAnErrorAndTheOuterOneStays) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    {
      auto scope = fsdp.summon_full_parameters();
      EXPECT_THAT(
          error_of([&] { (void)fsdp.summon_full_parameters(); }),
          HasSubstr("inside another"));
      EXPECT_EQ(scope.tensor("head.weight").numel(), 6);
    }
    {
      auto again = fsdp.summon_full_parameters();
    }
  }));
}

TEST_P(Summon, T43AClosedScopeGivesNothingMore) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    auto scope = fsdp.summon_full_parameters();
    auto moved = std::move(scope);
    moved.close();
    moved.close();
    EXPECT_THAT(
        error_of([&] { (void)moved.tensor("head.weight"); }),
        HasSubstr("this summon scope has ended"));
    chain_loss(model, 0, world.rank()).backward();
  }));
}

TEST_P(Summon, T43BackwardAndPublishInAScopeAreErrors) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    const Slicing slicing(*reference, world, {});
    auto fsdp = fully_shard(*model, world);
    {
      auto scope = fsdp.summon_full_parameters();
      EXPECT_THAT(
          error_of([&] { chain_loss(model, 0, world.rank()).backward(); }),
          HasSubstr("inside summon_full_parameters()"));
      EXPECT_THAT(
          error_of([&] { fsdp.publish(); }),
          HasSubstr("inside summon_full_parameters()"));
    }
    const auto leaves = unique_parameters(*reference);
    reference_backward<Chain>(reference, leaves, chain_loss, 1, world);
    chain_loss(model, 1, world.rank()).backward();
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }));
}

TEST_P(Summon, T43AScopeOutlivesTheHandle) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(3, 6), model(3, 6);
    auto fsdp =
        std::make_unique<FullyShardedDataParallel>(fully_shard(*model, world));
    auto scope = fsdp->summon_full_parameters({.read_only = true});
    fsdp.reset();
    expect_close(
        scope.tensor("head.weight"), reference->head->weight.detach(), 0.0,
        "head.weight");
    scope.close();
  }));
}

TEST_P(Summon, T43AGraphFromBeforeAWriteIsLibTorchsVersionError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    const auto old = chain_loss(model, 0, world.rank());
    {
      const torch::NoGradGuard no_grad;
      auto scope = fsdp.summon_full_parameters();
      model->head->weight.add_(1);
    }
    EXPECT_THAT(
        error_of([&] { old.backward(); }),
        HasSubstr("modified by an inplace operation"));
  }));
}

TEST_P(Summon, T43OfOneModuleTheRestStaysSharded) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      Chain reference(3, 6), model(3, 6);
      auto fsdp = fully_shard(*model, world, {.strategy = strategy});
      const auto write = [](Chain& to) {
        const torch::NoGradGuard no_grad;
        to->layer(1).weight.mul_(2).add_(1);
      };
      write(reference);
      {
        auto scope = fsdp.summon_full_parameters({.module = "layers.1"});
        write(model);
        EXPECT_EQ(scope.tensor("layers.1.bias").numel(), 6);
        if (world.size() > 1) {
          const torch::NoGradGuard no_grad;
          EXPECT_THAT(
              error_of([&] { (void)model->layer(2).bias.sum(); }),
              HasSubstr("layers.2.bias, which stays sharded"));
          EXPECT_THAT(
              error_of([&] { (void)scope.tensor("head.bias"); }),
              HasSubstr("head.bias stays sharded"));
        }
      }
      expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
    }
  }));
}

TEST_P(Summon, T43OnRankZeroOnly) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      Chain reference(3, 6), model(3, 6);
      auto fsdp = fully_shard(*model, world, {.strategy = strategy});
      {
        const torch::NoGradGuard no_grad;
        const auto scope = fsdp.summon_full_parameters(
            {.read_only = true, .rank0_only = true});
        if (world.rank() == 0) {
          expect_close(
              chain_loss(model, 9, 0), chain_loss(reference, 9, 0), 0.0,
              "evaluation");
        } else {
          EXPECT_THAT(
              error_of([&] { (void)chain_loss(model, 9, 0); }),
              HasSubstr("rank 0 only"));
          EXPECT_THAT(
              error_of([&] { (void)scope.tensor("head.bias"); }),
              HasSubstr("rank 0 only"));
        }
      }
      chain_loss(model, 0, world.rank()).backward();
      expect_parameters(unique_parameters(*reference), *model, fsdp, 0.0);
    }
  }));
}

void expect_whole_gradients(
    const std::vector<NamedLeaf>& reference, const SummonScope& scope) {
  for (const auto& leaf : reference) {
    const auto found = scope.gradient(leaf.name);
    ASSERT_EQ(found.defined(), leaf.tensor.grad().defined()) << leaf.name;
    if (found.defined()) {
      expect_close(found, leaf.tensor.grad(), 0.0, leaf.name);
    }
  }
}

struct GradientCase {
  Strategy strategy = Strategy::kFullShard;
  int replicas = 1;
  OptimizerAxes axes = OptimizerAxes::kShard;
};

TEST_P(Summon, T43WithGradients) {
  std::vector<GradientCase> cases = {
      {},
      {.strategy = Strategy::kShardGradOp},
      {.strategy = Strategy::kNoShard}};
  if (GetParam() % 2 == 0) {
    cases.push_back({.replicas = 2});
    cases.push_back({.replicas = 2, .axes = OptimizerAxes::kBoth});
  }
  expect_all_ok(run_ranks(GetParam(), [&](World world) {
    for (const auto& [strategy, replicas, axes] : cases) {
      FullyShardOptions options;
      options.strategy = strategy;
      options.optimizer_axes = axes;
      const Mesh mesh(world, {.replicate = replicas});
      Chain reference(3, 6), model(3, 6);
      for (auto* each : {&reference, &model}) {
        (*each)->layer(1).bias.requires_grad_(false);
      }
      const Slicing slicing(*reference, mesh, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, mesh, options);
      {
        const auto none = fsdp.summon_full_parameters(
            {.read_only = true, .with_gradients = true});
        EXPECT_FALSE(none.gradient("head.weight").defined());
      }
      reference_backward<Chain>(reference, leaves, chain_loss, 0, world);
      chain_loss(model, 0, world.rank()).backward();
      {
        const auto scope = fsdp.summon_full_parameters(
            {.read_only = true, .rank0_only = true, .with_gradients = true});
        if (world.rank() == 0) {
          expect_whole_gradients(leaves, scope);
        }
      }
      {
        const auto scope =
            fsdp.summon_full_parameters({.with_gradients = true});
        expect_whole_gradients(leaves, scope);
        scope.gradient("layers.2.weight").mul_(2);
      }
      reference->layer(2).weight.mutable_grad().mul_(2);
      expect_gradients(slicing, leaves, fsdp, 0.0);
      {
        const auto scope =
            fsdp.summon_full_parameters({.with_gradients = true});
        for (auto& item : fsdp.named_parameters().items) {
          item.slice.mutable_grad().reset();
        }
      }
      for (const auto& item : fsdp.named_parameters().items) {
        EXPECT_FALSE(item.slice.grad().defined()) << item.name;
      }
      const auto without = fsdp.summon_full_parameters();
      EXPECT_THAT(
          error_of([&] { (void)without.gradient("head.weight"); }),
          HasSubstr("expected SummonOptions::with_gradients"));
    }
  }));
}

// Its uses end with it, whenever that is.
TEST_P(Summon, T43AParameterTouchedInAScopeMayBeReleasedAfterIt) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      const Slicing slicing(*reference, world, options);
      auto fsdp = fully_shard(*model, world, options);
      const auto leaves = unique_parameters(*reference);
      {
        auto scope = fsdp.summon_full_parameters({.read_only = true});
        const auto whole = touch(model->layer(1).weight);
        scope.close();
      }
      std::optional<TouchScope> in_next_scope;
      std::optional<TouchScope> after_a_step;
      {
        const auto scope = fsdp.summon_full_parameters({.read_only = true});
        in_next_scope.emplace(model->layer(0).weight);
        after_a_step.emplace(model->layer(1).weight);
      }
      {
        const auto scope = fsdp.summon_full_parameters({.read_only = true});
        in_next_scope.reset();
      }
      for (int batch = 0; batch < 2; ++batch) {
        reference_backward<Chain>(
            reference, leaves, chain_loss, batch, world, options);
        chain_loss(model, batch, world.rank()).backward();
        expect_gradients(slicing, leaves, fsdp, 0.0);
        sign_steps()(tensors_of(leaves))();
        sign_steps()(fsdp.parameters())();
        fsdp.publish();
        after_a_step.reset();
      }
      expect_parameters(leaves, *model, fsdp, 0.0);
    }
  }));
}

// Also where one rank alone has it in use. The model goes on.
TEST_P(Summon, T43AParameterInUseIsRefusedOnEveryRank) {
  if (GetParam() == 1) {
    return;  // Nothing is gathered or dropped.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      const Slicing slicing(*reference, world, options);
      auto fsdp = fully_shard(*model, world, options);
      const auto leaves = unique_parameters(*reference);
      const int last = world.size() - 1;
      const bool odd = world.rank() == last;
      reference_backward<Chain>(
          reference, leaves, chain_loss, 0, world, options);
      chain_loss(model, 0, world.rank()).backward();
      {
        const torch::NoGradGuard no_grad;
        fsdp.publish();
        std::optional<TouchScope> whole(std::in_place, model->layer(1).weight);
        const auto refusal = [&] {
          return error_of([&] { (void)fsdp.summon_full_parameters(); });
        };
        const char* in_use =
            "summon_full_parameters() while unit layers.1 is in use by";
        EXPECT_THAT(refusal(), HasSubstr(in_use));
        if (!odd) {
          whole.reset();
        }
        EXPECT_THAT(
            refusal(),
            HasSubstr(
                odd ? in_use : "refused on rank " + std::to_string(last)));
      }
      expect_gradients(slicing, leaves, fsdp, 0.0);
      reference_backward<Chain>(
          reference, leaves, chain_loss, 1, world, options);
      chain_loss(model, 1, world.rank()).backward();
      expect_gradients(slicing, leaves, fsdp, 0.0);
      expect_parameters(leaves, *model, fsdp, 0.0);
    }
  }));
}

// What would be undone at the end of the scope is refused before it changes anything.
TEST_P(Summon, T43AScopeThatWritesGradientsRefusesToClipAndToUnscale) {
  if (GetParam() == 1) {
    return;  // There they are the gradients themselves.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      const Slicing slicing(*reference, world, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, world, options);
      GradScaler scaler(
          fsdp.named_parameters(), {.init_scale = 2, .uses_fp16 = true});
      AdamW adamw(fsdp.named_parameters());
      reference_backward<Chain>(
          reference, leaves, chain_loss, 0, world, options);
      chain_loss(model, 0, world.rank()).backward();
      {
        const auto scope =
            fsdp.summon_full_parameters({.with_gradients = true});
        const auto inside = HasSubstr(
            " inside summon_full_parameters({.with_gradients = true})");
        EXPECT_THAT(error_of([&] { fsdp.clip_grad_norm(0.5); }), inside);
        EXPECT_THAT(error_of([&] { scaler.unscale(); }), inside);
        EXPECT_THAT(error_of([&] { scaler.step(adamw); }), inside);
      }
      expect_gradients(slicing, leaves, fsdp, 0.0);
      expect_parameters(leaves, *model, fsdp, 0.0);
      scaler.unscale();
      for (const auto& leaf : leaves) {
        leaf.tensor.grad().mul_(0.5);
      }
      expect_gradients(slicing, leaves, fsdp, 0.0);
      {
        const auto scope = fsdp.summon_full_parameters(
            {.read_only = true, .with_gradients = true});
        EXPECT_GT(fsdp.clip_grad_norm(0.5), 0.5);
      }
      EXPECT_NEAR(fsdp.clip_grad_norm(1.0), 0.5, 1e-4);
    }
  }));
}

// As zero_grad(false) of a foreign optimizer does, or one on each rank's slices.
TEST_P(Summon, T43WhatIsWrittenToGradientsOfSlicesIsKeptBesideTheWholeOnes) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : kAll) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(3, 6), model(3, 6);
      const Slicing slicing(*reference, world, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, world, options);
      reference_backward<Chain>(
          reference, leaves, chain_loss, 0, world, options);
      chain_loss(model, 0, world.rank()).backward();
      {
        const auto scope =
            fsdp.summon_full_parameters({.with_gradients = true});
        for (const auto& slice : fsdp.parameters()) {
          slice.grad().zero_();
        }
        scope.gradient("layers.2.weight").fill_(3);
      }
      for (const auto& leaf : leaves) {
        leaf.tensor.grad().fill_(leaf.name == "layers.2.weight" ? 3 : 0);
      }
      expect_gradients(slicing, leaves, fsdp, 0.0);
    }
  }));
}

// And the model goes on.
TEST_P(Summon, T43OptionsThatCannotBeAreRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(3, 6);
    auto fsdp = fully_shard(*model, world);
    EXPECT_THAT(
        error_of(
            [&] { (void)fsdp.summon_full_parameters({.rank0_only = true}); }),
        HasSubstr("expected read_only with rank0_only"));
    EXPECT_THAT(
        error_of(
            [&] { (void)fsdp.summon_full_parameters({.module = "layers.7"}); }),
        HasSubstr("found 'layers.7'"));
    if (world.size() > 1) {
      const int last = world.size() - 1;
      const bool odd = world.rank() == last;
      EXPECT_THAT(
          error_of([&] {
            (void)fsdp.summon_full_parameters(
                {.module = odd ? "layers.7" : "layers.1"});
          }),
          HasSubstr(
              odd ? "found 'layers.7'"
                  : "refused on rank " + std::to_string(last)));
      EXPECT_THAT(
          error_of([&] {
            (void)fsdp.summon_full_parameters(
                {.module = odd ? "layers.2" : "layers.1"});
          }),
          HasSubstr("rank " + std::to_string(last) + " not what rank 0 does"));
    }
    chain_loss(model, 0, world.rank()).backward();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Summon,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
