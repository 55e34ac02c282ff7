// SPDX-License-Identifier: Apache-2.0
//
// Evaluation in full precision, unit by unit: the outputs are those of a plain fp32 model, the budget
// holds, and training goes on as if nothing had been evaluated.
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <optional>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>
#include <sherd/optim/adamw.h>
#include "exchange/exchange.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FullPrecision : public ::testing::TestWithParam<int> {};

constexpr std::int64_t kPreciseWidth = 32;

// Layers of values that bf16 rounds.
Chain precise_chain() {
  torch::manual_seed(3);
  Chain model(5, kPreciseWidth);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model->parameters()) {
    parameter.copy_(torch::rand_like(parameter) * 0.6 - 0.3);
  }
  return model;
}

FullyShardOptions precise_options(
    Strategy strategy, ExchangeKind exchange = ExchangeKind::kAuto) {
  FullyShardOptions options;
  options.strategy = strategy;
  options.exchange = exchange;
  options.mixed_precision = {.param_dtype = torch::kBFloat16};
  return options;
}

torch::Tensor precise_input() {
  return torch::linspace(-1, 1, 3 * kPreciseWidth).view({3, kPreciseWidth});
}

torch::Tensor evaluate(Chain& model) {
  const torch::NoGradGuard no_grad;
  return model->forward(precise_input());
}

// A layer of the chain in fp32.
std::int64_t layer_bytes() {
  return (kPreciseWidth * kPreciseWidth + kPreciseWidth) *
      static_cast<std::int64_t>(sizeof(float));
}

struct PreciseRun {
  World world;
  FullyShardOptions options;
  Chain model = precise_chain();
  FullyShardedDataParallel fsdp = fully_shard(*model, world, options);
  AdamW adamw = AdamW(fsdp.named_parameters(), {.learning_rate = 0.01});

  float step(int batch) {
    auto loss = model->forward(precise_input() * (1 + batch + world.rank()))
                    .to(torch::kFloat)
                    .square()
                    .mean();
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    return loss.item<float>();
  }

  // What a plain model computes with the present values.
  torch::Tensor expected() {
    auto plain = precise_chain();
    auto target = plain->named_parameters();
    const auto scope = fsdp.summon_full_parameters({.read_only = true});
    const torch::NoGradGuard no_grad;
    for (auto& item : target) {
      item.value().copy_(scope.tensor(item.key()));
    }
    return evaluate(plain);
  }
};

constexpr ExchangeKind kPreciseExchanges[] = {
    ExchangeKind::kAuto, ExchangeKind::kCollective};

TEST_P(FullPrecision, A20OutputsAreThoseOfAPlainModel) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const auto exchange : kPreciseExchanges) {
        PreciseRun run{world, precise_options(strategy, exchange)};
        for (int batch = 0; batch < 2; ++batch) {
          const auto expected = run.expected();
          {
            const auto scope = run.fsdp.full_precision();
            const auto found = evaluate(run.model);
            EXPECT_EQ(found.scalar_type(), torch::kFloat);
            expect_close(found, expected, 0.0, "output");
            expect_close(evaluate(run.model), expected, 0.0, "again");
          }
          const auto narrow = evaluate(run.model);
          EXPECT_EQ(narrow.scalar_type(), torch::kBFloat16);
          EXPECT_FALSE(torch::equal(narrow.to(torch::kFloat), expected));
          run.step(batch);
        }
      }
    }
  }));
}

// As many units are whole as there is room for in fp32.
// An operator may return its argument, whose memory goes with the unit.
TEST_P(FullPrecision, A20WhatAnEvaluationKeepsOfAParameterStays) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange : kPreciseExchanges) {
      PreciseRun run{world, precise_options(Strategy::kFullShard, exchange)};
      const auto scope = run.fsdp.full_precision();
      const torch::NoGradGuard no_grad;
      const auto parameter = run.model->parameters().front();
      const auto kept = parameter.to(torch::kFloat);
      EXPECT_FALSE(kept.is_alias_of(parameter.to(torch::kFloat)));
      const auto value = kept.clone();
      const auto parts = parameter.tensor_split(2);
      EXPECT_FALSE(parts[0].is_alias_of(parameter.tensor_split(2)[0]));
      evaluate(run.model);
      EXPECT_TRUE(torch::equal(kept, value));
      EXPECT_TRUE(torch::equal(torch::cat({parts[0], parts[1]}), value));
    }
  }));
}

TEST_P(FullPrecision, A20TheBudgetHoldsInBytesOfFullPrecision) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;  // Nothing is gathered.
    }
    for (const auto exchange : kPreciseExchanges) {
      // The root unit is the small head.
      const std::int64_t room = 3 * layer_bytes() + 1024;
      auto options = precise_options(Strategy::kFullShard, exchange);
      options.budget_bytes = room;
      PreciseRun run{world, options};
      const auto expected = run.expected();
      const auto scope = run.fsdp.full_precision();
      const auto before = run.fsdp.report();
      expect_close(evaluate(run.model), expected, 0.0, "output");
      const auto first = run.fsdp.report();
      EXPECT_EQ(first.unshards - before.unshards, 6);
      EXPECT_LE(first.unsharded_bytes_peak, room);
      EXPECT_GT(first.unsharded_bytes_peak, 2 * layer_bytes());
      // Units that are still whole are not gathered again; the others are.
      expect_close(evaluate(run.model), expected, 0.0, "again");
      const auto second = run.fsdp.report();
      EXPECT_GE(second.unshards - first.unshards, 4);
      EXPECT_LE(second.unsharded_bytes_peak, room);
    }
  }));
}

TEST_P(FullPrecision, A20ABudgetThatIsTooSmallIsAnErrorAndThePresetGrows) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    for (const auto exchange : kPreciseExchanges) {
      auto options = precise_options(Strategy::kFullShard, exchange);
      // Room for a layer and the head in bf16.
      options.budget_bytes = layer_bytes() * 3 / 4;
      PreciseRun small{world, options};
      {
        const auto scope = small.fsdp.full_precision();
        EXPECT_THAT(
            error_of([&] { (void)evaluate(small.model); }),
            AllOf(
                HasSubstr("bytes must be whole at once"),
                HasSubstr("but the budget is")));
      }
      const auto first = small.step(0);
      PreciseRun preset{world, precise_options(Strategy::kFullShard, exchange)};
      EXPECT_EQ(preset.step(0), first);
      const auto expected = preset.expected();
      const auto scope = preset.fsdp.full_precision();
      expect_close(evaluate(preset.model), expected, 0.0, "output");
      EXPECT_LT(preset.fsdp.report().unsharded_bytes_peak, 4 * layer_bytes());
    }
  }));
}

// All units in bf16 are fewer bytes than the one unit in fp32.
TEST_P(FullPrecision, A20TheBudgetOfShardGradOpGrows) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange : kPreciseExchanges) {
      auto options = precise_options(Strategy::kShardGradOp, exchange);
      options.units = units::none();
      PreciseRun run{world, options};
      for (int step = 0; step < 2; ++step) {
        (void)run.step(step);
        const auto expected = run.expected();
        const auto scope = run.fsdp.full_precision();
        expect_close(evaluate(run.model), expected, 0.0, "output");
      }
    }
  }));
}

// Losses, values and plans are those of a run that was never evaluated.
TEST_P(FullPrecision, A20TrainingGoesOnAsIfNothingHadBeenEvaluated) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange : kPreciseExchanges) {
      for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
        PreciseRun plain{world, precise_options(strategy, exchange)};
        PreciseRun run{world, precise_options(strategy, exchange)};
        for (int batch = 0; batch < 6; ++batch) {
          EXPECT_EQ(run.step(batch), plain.step(batch));
          if (batch % 2 == 1) {
            const auto scope = run.fsdp.full_precision();
            (void)evaluate(run.model);
          }
        }
        const auto expected = plain.fsdp.report().plan;
        const auto found = run.fsdp.report().plan;
        EXPECT_EQ(found.steps_planned, expected.steps_planned);
        EXPECT_EQ(found.deviations, 0);
        expect_close(run.expected(), plain.expected(), 0.0, "values");
      }
    }
  }));
}

// A frozen unit stays whole over steps, but not over a scope; some parameters keep their dtype.
TEST_P(FullPrecision, A20WithFrozenUnitsAndParametersThatAreNotCast) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto exchange : kPreciseExchanges) {
      auto options = precise_options(Strategy::kShardGradOp, exchange);
      options.units = units::any_of(
          {units::with_options(
               units::by_name("layers.1"),
               {.mixed_precision = MixedPrecision()}),
           units::children_of_lists()});
      auto model = precise_chain();
      for (auto& parameter : model->layer(0).parameters()) {
        parameter.requires_grad_(false);
      }
      auto plain = precise_chain();
      auto fsdp = fully_shard(*model, world, options);
      for (int step = 0; step < 3; ++step) {
        {
          const auto scope = fsdp.full_precision();
          expect_close(evaluate(model), evaluate(plain), 0.0, "output");
        }
        model->forward(precise_input()).sum().backward();
        fsdp.publish();
      }
    }
  }));
}

TEST_P(FullPrecision, A20GathersAreNotCoded) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    FullyShardOptions options;
    options.exchange = ExchangeKind::kCollective;
    options.gather_hook = quantise_gathers({.block = 64});
    auto plain = precise_chain();
    auto model = precise_chain();
    auto fsdp = fully_shard(*model, world, options);
    {
      const auto scope = fsdp.full_precision();
      expect_close(evaluate(model), evaluate(plain), 0.0, "output");
    }
    EXPECT_EQ(
        torch::equal(evaluate(model), evaluate(plain)), world.size() == 1);
  }));
}

TEST_P(FullPrecision, A20AfterABackwardItPublishesFirst) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    PreciseRun run{world, precise_options(Strategy::kFullShard)};
    run.model->forward(precise_input()).sum().backward();
    {
      const torch::NoGradGuard no_grad;
      for (auto& slice : run.fsdp.parameters()) {
        slice.mul_(0.5);  // A foreign optimizer.
      }
    }
    const auto scope = run.fsdp.full_precision();
    auto plain = precise_chain();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : plain->parameters()) {
        parameter.mul_(0.5);
      }
    }
    expect_close(evaluate(run.model), evaluate(plain), 0.0, "output");
  }));
}

TEST_P(FullPrecision, A20WhatCannotBeDoneInsideIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    PreciseRun run{world, precise_options(Strategy::kFullShard)};
    auto& fsdp = run.fsdp;
    const auto before = run.model->forward(precise_input()).sum();
    {
      const auto scope = fsdp.full_precision();
      const auto inside = HasSubstr("inside full_precision()");
      EXPECT_THAT(
          error_of([&] { (void)run.model->forward(precise_input()); }),
          AllOf(inside, HasSubstr("NoGradGuard")));
      EXPECT_THAT(
          error_of([&] { (void)fsdp.full_precision(); }),
          HasSubstr("inside another such scope"));
      EXPECT_THAT(error_of([&] { fsdp.publish(); }), inside);
      EXPECT_THAT(
          error_of([&] { (void)fsdp.summon_full_parameters(); }), inside);
      EXPECT_THAT(error_of([&] { fsdp.unshard(); }), inside);
      EXPECT_THAT(error_of([&] { (void)fsdp.unshard("layers.0"); }), inside);
      EXPECT_THAT(error_of([&] { (void)fsdp.join(); }), inside);
      EXPECT_THAT(
          error_of([&] { fsdp.set_strategy(Strategy::kShardGradOp); }),
          HasSubstr("[fsdp]"));
      fsdp.reshard();
      (void)evaluate(run.model);
    }
    before.backward();
    {
      const auto scope = fsdp.summon_full_parameters();
      EXPECT_THAT(
          error_of([&] { (void)fsdp.full_precision(); }),
          HasSubstr("full_precision() inside summon_full_parameters()"));
    }
    {
      auto join = fsdp.join();
      EXPECT_THAT(
          error_of([&] { (void)fsdp.full_precision(); }),
          HasSubstr("full_precision() inside a join scope"));
      join.finish([&] { fsdp.publish(); });
    }
    run.step(0);
  }));
}

// Its graph would need the values of before.
TEST_P(FullPrecision, A20AParameterInUseIsRefusedAndLocksNothing) {
  if (GetParam() == 1) {
    return;  // Nothing is gathered or dropped.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    PreciseRun run{world, precise_options(Strategy::kFullShard)};
    {
      const auto in_use = touch(run.model->layer(1).weight);
      EXPECT_THAT(
          error_of([&] { (void)run.fsdp.full_precision(); }),
          HasSubstr("in use by"));
    }
    const int last = world.size() - 1;
    std::optional<TouchScope> on_last_rank(
        std::in_place, run.model->layer(1).weight);
    if (world.rank() != last) {
      on_last_rank.reset();
    }
    EXPECT_THAT(
        error_of([&] { (void)run.fsdp.full_precision(); }),
        HasSubstr(
            world.rank() == last ? "in use by"
                                 : "refused on rank " + std::to_string(last)));
    on_last_rank.reset();
    run.step(0);
    {
      const torch::NoGradGuard no_grad;
      std::optional<FullPrecisionScope> scope = run.fsdp.full_precision();
      const auto outlives = touch(run.model->layer(1).weight);
      scope.reset();
    }
    run.step(1);
    const auto expected = run.expected();
    const auto scope = run.fsdp.full_precision();
    EXPECT_TRUE(torch::equal(evaluate(run.model), expected));
  }));
}

TEST_P(FullPrecision, A20ABackwardInsideIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    PreciseRun run{world, precise_options(Strategy::kFullShard)};
    const auto loss = run.model->forward(precise_input()).sum();
    {
      const auto scope = run.fsdp.full_precision();
      EXPECT_THAT(
          error_of([&] { loss.backward(); }),
          HasSubstr("a backward ran inside full_precision()"));
    }
    run.step(0);
  }));
}

// A difference between ranks is an error on each of them.
TEST_P(FullPrecision, A20RanksThatUseOtherUnitsAreTold) {
  const auto body = [](World world) {
    if (world.size() == 1) {
      return;
    }
    PreciseRun run{
        world,
        precise_options(Strategy::kFullShard, ExchangeKind::kCollective)};
    const auto scope = run.fsdp.full_precision();
    const torch::NoGradGuard no_grad;
    EXPECT_THAT(
        error_of([&] {
          for (std::size_t i = 0; i < 5; ++i) {
            const auto layer = world.rank() == 1 ? 4 - i : i;
            (void)run.model->layer(layer).forward(precise_input());
          }
        }),
        HasSubstr("ranks went different ways"));
  };
  expect_all_ok(run_ranks(GetParam(), body, {.close_world = false}));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    FullPrecision,
    ::testing::Values(1, 2, 3, 4),
    ::testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
