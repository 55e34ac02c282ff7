// SPDX-License-Identifier: Apache-2.0
//
// The handle of a sharded model: manual unshard and reshard, replaced storage,
// the end of the handle, the wrong optimizer.
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <optional>
#include <gmock/gmock.h>
#include <sherd/ddp/replicate.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/sgd.h>

namespace sherd::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Handle : public testing::TestWithParam<int> {};

torch::Tensor chain_loss(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 6)).sum();
}

TEST_P(Handle, T32UnshardAndReshardAnywhereChangeNoNumber) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      FullyShardOptions options;
      options.strategy = strategy;
      Chain reference(4, 6), model(4, 6);
      const Slicing slicing(*reference, world, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, world, options);
      const auto step_reference = sign_steps()(tensors_of(leaves));
      const auto step_shards = sign_steps()(fsdp.parameters());
      fsdp.reshard();  // Before the first use.
      for (int batch = 0; batch < 3; ++batch) {
        fsdp.unshard();
        auto loss = chain_loss(model, batch, world.rank());
        if (batch == 1) {
          fsdp.reshard();
        } else {
          fsdp.unshard();
        }
        loss.backward();
        fsdp.reshard();
        fsdp.reshard();  // Twice is once.
        reference_backward<Chain>(reference, leaves, chain_loss, batch, world);
        expect_gradients(slicing, leaves, fsdp, 0.0);
        step_reference();
        step_shards();
        fsdp.unshard();  // Before publish: it must not keep old values.
        fsdp.publish();
        fsdp.unshard();
      }
      expect_parameters(leaves, *model, fsdp, 0.0);
    }
  }));
}

TEST_P(Handle, SyncModuleStatesGivesAllRanksTheValuesOfRank0) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto make = [](int salt) {
      torch::nn::Sequential model(
          torch::nn::Linear(5, 4), torch::nn::BatchNorm1d(4));
      const torch::NoGradGuard no_grad;
      for (auto tensors : {model->parameters(), model->buffers()}) {
        for (auto& tensor : tensors) {
          tensor.fill_(salt);
        }
      }
      return model;
    };
    auto model = make(7 + world.rank());
    const auto first = make(7);
    FullyShardOptions options;
    options.sync_module_states = true;
    auto fsdp = fully_shard(*model, world, options);
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& item : first->named_parameters()) {
      EXPECT_TRUE(scope.tensor(item.key()).equal(item.value())) << item.key();
    }
    for (const auto& item : first->named_buffers()) {
      EXPECT_TRUE(model->named_buffers()[item.key()].equal(item.value()))
          << item.key();
    }
  }));
}

TEST_P(Handle, T32UnshardReachesAsFarAsTheBudget) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(4, 6);
    auto options = over_messages();
    options.budget_bytes = 640;
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_EQ(fsdp.report().unshards, 0);
    fsdp.unshard();
    const auto report = fsdp.report();
    EXPECT_GE(report.unshards, 1);
    EXPECT_LE(report.unsharded_bytes_peak, 640);
    EXPECT_EQ(report.unsharded_bytes, report.unsharded_bytes_peak);
    fsdp.unshard();
    EXPECT_EQ(fsdp.report().unshards, report.unshards);  // Whole already.
    const torch::NoGradGuard no_grad;
    Chain reference(4, 6);
    const auto x = integer_rows(0, 0, 6);
    expect_close(model->forward(x), reference->forward(x), 0.0, "forward");
  }));
}

TEST_P(Handle, T38ChangingTheDtypeAfterShardingIsAnErrorThatNamesTheParameter) {
  for (const bool forward_again : {true, false}) {
    expect_all_ok(run_ranks(GetParam(), [&](World world) {
      Chain model(2, 6);
      auto fsdp = fully_shard(*model, world);
      chain_loss(model, 0, world.rank()).backward();
      model->to(torch::kDouble);
      const auto error = error_of([&] {
        if (forward_again) {
          const auto x = integer_rows(0, world.rank(), 6).to(torch::kDouble);
          model->forward(x).sum().backward();
        }
        fsdp.publish();
        (void)fsdp.summon_full_parameters();
      });
      // One rank alone learns of it from the first gradient that arrives.
      const bool in_backward = world.size() == 1 && forward_again;
      EXPECT_THAT(
          error,
          HasSubstr(
              std::string("parameter ") +
              (in_backward ? "head.bias" : "layers.0.weight") +
              " was given another storage"));
    }));
  }
}

TEST_P(Handle, T38ReplacedDataOfOneParameterIsAnErrorThatNamesIt) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    chain_loss(model, 0, world.rank()).backward();
    model->layer(1).bias.set_data(torch::zeros({6}));
    const auto error =
        error_of([&] { chain_loss(model, 1, world.rank()).backward(); });
    EXPECT_THAT(
        error, HasSubstr("parameter layers.1.bias was given another storage"));
  }));
}

TEST_P(Handle, ParametersThatShareMemoryAreRefusedOnEveryRank) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    model->layer(1).weight.set_data(model->layer(0).weight.detach().t());
    EXPECT_THAT(
        error_of([&] { (void)fully_shard(*model, world); }),
        HasSubstr("layers.0.weight and layers.1.weight share memory"));
  }));
}

TEST_P(Handle, T38TheSameDtypeChangesNothing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    expect_rank_parity<Chain>(
        world, [] { return Chain(2, 6); },
        [](Chain& model, int batch, int rank) {
          model->to(torch::kFloat);
          return chain_loss(model, batch, rank);
        },
        options);
  }));
}

TEST_P(Handle, AModelShardedInInferenceModeTrains) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(2, 6), model(2, 6);
    std::optional<FullyShardedDataParallel> fsdp;
    {
      const c10::InferenceMode inference;
      fsdp.emplace(fully_shard(*model, world));
    }
    const auto leaves = unique_parameters(*reference);
    const auto step_reference = sign_steps()(tensors_of(leaves));
    const auto step_shards = sign_steps()(fsdp->parameters());
    for (int batch = 0; batch < 2; ++batch) {
      reference_backward<Chain>(reference, leaves, chain_loss, batch, world);
      chain_loss(model, batch, world.rank()).backward();
      step_reference();
      step_shards();
    }
    fsdp->publish();
    expect_parameters(leaves, *model, *fsdp, 0.0);
  }));
}

TEST_P(Handle, OptimizersLeaveFrozenIntegersAlone) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference(2, 6), model(2, 6);
    const auto ids = torch::arange(5);
    model->register_parameter("ids", ids.clone(), /*requires_grad=*/false);
    const auto leaves = unique_parameters(*reference);
    auto fsdp = fully_shard(*model, world);
    Sgd sharded(fsdp.named_parameters(), {.learning_rate = 0.5});
    AdamW also(fsdp.named_parameters());
    torch::optim::SGD plain(tensors_of(leaves), 0.5);
    reference_backward<Chain>(reference, leaves, chain_loss, 0, world);
    chain_loss(model, 0, world.rank()).backward();
    plain.step();
    sharded.step();
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    for (const auto& leaf : leaves) {
      expect_close(
          scope.tensor(leaf.name), leaf.tensor.detach(), 1e-6, leaf.name);
    }
    EXPECT_TRUE(torch::equal(scope.tensor("ids"), ids));
  }));
}

TEST_P(Handle, UsingTheModelAfterItsHandleDiedIsAClearError) {
  if (GetParam() == 1) {
    return;  // There the model is a plain one.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    torch::Tensor pending;
    {
      auto fsdp = fully_shard(*model, world);
      pending = chain_loss(model, 0, world.rank());
    }
    EXPECT_THAT(
        error_of([&] { chain_loss(model, 0, world.rank()); }),
        HasSubstr("handle was destroyed"));
    EXPECT_THAT(error_of([&] { pending.backward(); }), HasSubstr("handle"));
    EXPECT_THAT(
        error_of([&] { (void)model->layer(0).weight.data_ptr(); }),
        HasSubstr("handle"));
  }));
}

TEST_P(Handle, AClosedHandleRefusesEverythingButAnotherClose) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    fsdp.close();
    fsdp.close();
    EXPECT_THAT(error_of([&] { fsdp.publish(); }), HasSubstr("closed"));
    EXPECT_THAT(error_of([&] { fsdp.unshard(); }), HasSubstr("closed"));
    EXPECT_THAT(error_of([&] { fsdp.clip_grad_norm(1); }), HasSubstr("closed"));
    EXPECT_THAT(
        error_of([&] { (void)fsdp.summon_full_parameters(); }),
        HasSubstr("closed"));
    EXPECT_THAT(
        error_of([&] { chain_loss(model, 0, 0); }), HasSubstr("handle"));
  }));
}

TEST_P(Handle, AModuleWhoseHandleWasClosedIsShardedAgainOnOneRankOnly) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool closes : {true, false}) {
      Chain model(2, 6);
      std::optional<FullyShardedDataParallel> fsdp(fully_shard(*model, world));
      if (closes) {
        fsdp->close();
      } else {
        fsdp.reset();
      }
      if (world.size() == 1) {
        const auto again = fully_shard(*model, world);
        chain_loss(model, 0, 0).backward();
        EXPECT_TRUE(again.parameters().front().grad().defined());
        continue;
      }
      const auto refused = AllOf(
          HasSubstr("layers.0.weight has no values any more"),
          HasSubstr("closed or destroyed"));
      EXPECT_THAT(error_of([&] { (void)fully_shard(*model, world); }), refused);
      EXPECT_THAT(error_of([&] { (void)replicate(*model, world); }), refused);
    }
  }));
}

TEST_P(Handle, AModuleThatWasMadeInInferenceModeIsRefusedByName) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto made = [] {
      const c10::InferenceMode on;
      return Chain(2, 6);
    };
    Chain model = made();
    const auto refused = AllOf(
        HasSubstr("layers.0.weight was made in inference mode"),
        HasSubstr("outside of c10::InferenceMode"));
    EXPECT_THAT(error_of([&] { (void)fully_shard(*model, world); }), refused);
    EXPECT_THAT(error_of([&] { (void)replicate(*model, world); }), refused);
  }));
}

TEST_P(Handle, ASliceThatWasGivenOtherMemoryIsNamed) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // A single rank has no memory beside the slices.
    }
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    chain_loss(model, 0, world.rank()).backward();
    for (auto& slice : fsdp.parameters()) {
      slice.set_data(torch::zeros_like(slice));
    }
    EXPECT_THAT(
        error_of([&] { fsdp.publish(); }),
        AllOf(HasSubstr("slice of parameter"), HasSubstr("other memory")));
    world.barrier();
  }));
}

// As to clip weights after the step of an optimizer, which has published.
TEST_P(Handle, SlicesThatAreWrittenArePublishedBeforeAnythingReadsThem) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    Sgd sgd(fsdp.named_parameters(), {.learning_rate = 0.1});
    chain_loss(model, 0, world.rank()).backward();
    sgd.step();
    sgd.zero_grad();
    const auto clip = [&] {
      const torch::NoGradGuard no_grad;
      for (auto& slice : fsdp.parameters()) {
        slice.clamp_(-0.01, 0.01);
      }
    };
    clip();
    if (world.size() > 1) {
      EXPECT_THAT(
          error_of([&] { chain_loss(model, 1, world.rank()); }),
          AllOf(HasSubstr("a slice was written"), HasSubstr("publish()")));
      world.barrier();
    }
    fsdp.publish();
    chain_loss(model, 1, world.rank()).backward();
    sgd.step();
    sgd.zero_grad();
    const torch::NoGradGuard no_grad;
    EXPECT_NE(chain_loss(model, 0, 0).item<float>(), 0.0F);
  }));
}

struct Multiply : torch::autograd::Function<Multiply> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      const torch::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.mm(weight.t());
  }
  static torch::autograd::tensor_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::tensor_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].mm(saved[1]), gradients[0].t().mm(saved[0])};
  }
};

// The Function reads its weight before anything that records gradients does.
TEST_P(Handle, AStepThatIsLeftOutMayPrecedeAForwardThatBeginsWithAFunction) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const bool messages : {false, true}) {
      torch::manual_seed(1);
      torch::nn::Sequential model(
          torch::nn::Linear(torch::nn::LinearOptions(6, 6).bias(false)),
          torch::nn::Linear(6, 6));
      const auto weight = model->parameters()[0];
      FullyShardOptions options;
      options.exchange =
          messages ? ExchangeKind::kCollective : ExchangeKind::kAuto;
      auto fsdp = fully_shard(*model, world, options);
      torch::optim::SGD sgd(fsdp.parameters(), 0.1);
      for (int step = 0; step < 4; ++step) {
        auto x = Multiply::apply(torch::ones({4, 6}), weight);
        model[1]->as<torch::nn::Linear>()->forward(x).sum().backward();
        if (step != 1) {
          sgd.step();
        }
        fsdp.publish();
        sgd.zero_grad();
      }
    }
  }));
}

TEST_P(Handle, MovingTheHandleKeepsTheModelAndAssigningClosesTheOldOne) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain first(2, 6), second(2, 6);
    auto fsdp = fully_shard(*first, world);
    auto moved = std::move(fsdp);
    chain_loss(first, 0, world.rank()).backward();
    EXPECT_TRUE(moved.parameters().front().grad().defined());
    moved = fully_shard(*second, world);
    chain_loss(second, 0, world.rank()).backward();
    if (world.size() > 1) {
      EXPECT_THAT(
          error_of([&] { chain_loss(first, 0, world.rank()); }),
          HasSubstr("handle"));
    }
  }));
}

TEST_P(Handle, CallsOfAHandleThatWasMovedFromAreAClearError) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model(2, 6);
    auto fsdp = fully_shard(*model, world);
    const auto moved = std::move(fsdp);
    const auto named = HasSubstr("FullyShardedDataParallel was moved from");
    // NOLINTBEGIN(bugprone-use-after-move): this is what is tested.
    EXPECT_THAT(error_of([&] { (void)fsdp.parameters(); }), named);
    EXPECT_THAT(error_of([&] { fsdp.clip_grad_norm(1); }), named);
    EXPECT_THAT(error_of([&] { (void)fsdp.no_sync(); }), named);
    EXPECT_THAT(error_of([&] { (void)fsdp.unshard("head"); }), named);
    fsdp.close();  // There is nothing to close.
    // NOLINTEND(bugprone-use-after-move)
    chain_loss(model, 0, world.rank()).backward();
    EXPECT_TRUE(moved.parameters().front().grad().defined());
  }));
}

TEST_P(Handle, TwoShardedModelsTrainSideBySide) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain teacher(2, 6);
    auto fsdp = fully_shard(*teacher, world);
    const Pass<Chain> pass = [&](Chain& student, int batch, int rank) {
      const auto x = integer_rows(batch, rank, 6);
      const torch::Tensor target = torch::full({1}, 2.0);
      return (student->forward(x) * target).sum();
    };
    expect_rank_parity<Chain>(world, [] { return Chain(3, 6); }, pass);
    chain_loss(teacher, 0, world.rank()).backward();
    if (world.size() > 1) {
      EXPECT_EQ(fsdp.report().backwards, 1);
    }
  }));
}

// ---- an optimizer over the wrong parameters ----

// Those of the module itself are refused: module_gradients_test.cpp.
std::vector<torch::Tensor> copies_of(Chain& model) {
  std::vector<torch::Tensor> copies;
  for (const auto& parameter : model->parameters()) {
    copies.push_back(parameter.detach().clone().requires_grad_());
  }
  return copies;
}

RankReport train_with(bool right, int ranks, int backwards) {
  return run_ranks(ranks, [&](World world) {
    Chain model(2, 6);
    const auto copies = copies_of(model);
    auto fsdp = fully_shard(*model, world);
    torch::optim::SGD sgd(right ? fsdp.parameters() : copies, 0.25);
    for (int batch = 0; batch < backwards; ++batch) {
      chain_loss(model, batch, world.rank()).backward();
      sgd.step();
      sgd.zero_grad();
    }
    std::fprintf(stderr, "trained\n");
  });
}

TEST_P(Handle, AnOptimizerOverOtherTensorsIsWarnedOfAfter64Backwards) {
  const auto report = train_with(false, GetParam(), 64);
  expect_all_ok(report);
  const auto& said = report[0].output;
  EXPECT_THAT(said, HasSubstr("no parameter has changed in 64 backwards"));
  EXPECT_LT(said.find("model->parameters()"), said.find("trained"));
}

TEST_P(Handle, AShorterTrainingIsWarnedOfAtClose) {
  const auto report = train_with(false, GetParam(), 3);
  expect_all_ok(report);
  EXPECT_THAT(
      report[0].output, HasSubstr("no parameter has changed in 3 backwards"));
}

TEST_P(Handle, TheRightOptimizerIsNotWarnedOf) {
  for (const int backwards : {3, 65}) {
    const auto report = train_with(true, GetParam(), backwards);
    expect_all_ok(report);
    for (const auto& rank : report.ranks) {
      EXPECT_THAT(rank.output, Not(HasSubstr("warning")));
    }
  }
}

TEST(HandleOfATinyModel, ARankThatOwnsNothingWarnsOfNothing) {
  const auto report = run_ranks(4, [](World world) {
    torch::nn::Linear linear(torch::nn::LinearOptions(2, 1).bias(false));
    fill_with_integers(*linear);
    auto fsdp = fully_shard(*linear, world);
    torch::optim::SGD sgd(fsdp.parameters(), 0.5);
    for (int batch = 0; batch < 3; ++batch) {
      linear(integer_rows(batch, 1, 2)).sum().backward();
      sgd.step();
      sgd.zero_grad();
    }
  });
  expect_all_ok(report);
  for (const auto& rank : report.ranks) {
    EXPECT_THAT(rank.output, Not(HasSubstr("warning")));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Handle,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
