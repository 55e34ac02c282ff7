// SPDX-License-Identifier: Apache-2.0
//
// What users decide by hand between the visits of a plan: single units to unshard and reshard, and
// another budget from one step on.
#include "support/budgets.h"
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <functional>
#include <optional>
#include <gmock/gmock.h>
#include <sherd/autograd/touch.h>

namespace sherd::test {
namespace {

using testing::HasSubstr;

class ByHand : public testing::TestWithParam<int> {};

// Kinds that gather, over two hosts.
constexpr ExchangeKind kGathering[] = {
    ExchangeKind::kCollective, ExchangeKind::kHierarchical};

RankOptions two_hosts(int ranks) {
  RankOptions options;
  if (ranks > 1) {
    options.hosts = {(ranks + 1) / 2, ranks / 2};
  }
  return options;
}

// Trains a chain of four layers beside one process.
class ChainBesideReference {
 public:
  ChainBesideReference(const World& world, const FullyShardOptions& options)
      : world_(world),
        options_(options),
        fsdp_(fully_shard(*model_, world, options)),
        step_reference_(sign_steps()(tensors_of(leaves_))),
        step_shards_(sign_steps()(fsdp_.parameters())) {}

  // Returns how many units were gathered.
  std::int64_t step(
      const std::function<void()>& before = [] {},
      const std::function<void()>& between = [] {}) {
    const auto gathered = fsdp_.report().unshards;
    before();
    auto loss = loss_of(model_, batch_, world_.rank());
    between();
    loss.backward();
    reference_backward<Chain>(
        reference_, leaves_, loss_of, batch_, world_, options_);
    step_reference_();
    step_shards_();
    fsdp_.publish();
    ++batch_;
    return fsdp_.report().unshards - gathered;
  }
  void expect_equal() { expect_parameters(leaves_, *model_, fsdp_, 0.0); }
  FullyShardedDataParallel& fsdp() { return fsdp_; }
  Chain& model() { return model_; }

 private:
  static torch::Tensor loss_of(Chain& model, int batch, int rank) {
    return model->forward(integer_rows(batch, rank, 6)).sum();
  }

  const World& world_;
  const FullyShardOptions options_;
  Chain reference_{4, 6};
  Chain model_{4, 6};
  const std::vector<NamedLeaf> leaves_ = unique_parameters(*reference_);
  FullyShardedDataParallel fsdp_;
  const std::function<void()> step_reference_;
  const std::function<void()> step_shards_;
  int batch_ = 0;
};

TEST_P(ByHand, B9OneModuleIsUnshardedWithoutLeavingThePlan) {
  expect_all_ok(run_ranks(
      GetParam(),
      [](World world) {
        for (int i = 0; i < 4; ++i) {
          ChainBesideReference chain(
              world,
              {.strategy =
                   i < 2 ? Strategy::kFullShard : Strategy::kShardGradOp,
               .exchange = kGathering[i % 2]});
          auto& fsdp = chain.fsdp();
          fsdp.unshard("layers.3").wait();  // Before the first use.
          chain.step();
          const auto planned = chain.step();
          const auto steps = fsdp.report().plan.steps_planned;
          // Gathered a little earlier, and no more often.
          EXPECT_EQ(
              chain.step([&] {
                auto handle = fsdp.unshard("layers.0");
                EXPECT_TRUE(handle.wait());
                EXPECT_TRUE(handle.wait());
              }),
              planned);
          // One that is used last has to make room where there is little.
          const auto early = chain.step([&] { fsdp.unshard("layers.3"); });
          EXPECT_GE(early, planned);
          EXPECT_LE(early, planned + 1);
          // A unit that was resharded is gathered again.
          const auto again =
              chain.step([] {}, [&] { fsdp.reshard("layers.3"); });
          EXPECT_LE(again, planned + 1);
          chain.expect_equal();
          if (world.size() > 1) {
            EXPECT_EQ(fsdp.report().plan.steps_planned, steps + 3);
            EXPECT_EQ(fsdp.report().plan.deviations, 0);
            EXPECT_LE(
                fsdp.report().unsharded_bytes_peak, fsdp.report().budget_bytes);
          }
        }
      },
      two_hosts(GetParam())));
}

TEST_P(ByHand, B9UnshardAndReshardAnywhereChangeNoNumber) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const std::vector<FullyShardOptions> all{
        {.strategy = Strategy::kFullShard},
        // With a budget, since units take memory of their own.
        {.strategy = Strategy::kFullShard,
         .exchange = ExchangeKind::kCollective},
        {.strategy = Strategy::kShardGradOp},
        {.strategy = Strategy::kNoShard}};
    for (const auto& options : all) {
      ChainBesideReference chain(world, options);
      auto& fsdp = chain.fsdp();
      for (int step = 0; step < 3; ++step) {
        chain.step(
            [&] {
              fsdp.unshard("layers.2");
              fsdp.unshard("layers");  // All that fit.
              fsdp.reshard("layers.1");
              fsdp.reshard("layers.1");
            },
            [&] {
              fsdp.reshard("layers");
              fsdp.unshard("head");
            });
        fsdp.unshard("layers.1");
      }
      chain.expect_equal();
      EXPECT_THAT(
          error_of([&] { fsdp.unshard("layers.9"); }),
          HasSubstr("found 'layers.9'"));
      EXPECT_THAT(
          error_of([&] { fsdp.reshard("layer"); }), HasSubstr("found 'layer'"));
    }
  }));
}

TEST_P(ByHand, B13BudgetAndStrategyChangeBetweenSteps) {
  expect_all_ok(run_ranks(
      GetParam(),
      [](World world) {
        for (const auto kind : kGathering) {
          FullyShardOptions options;
          options.exchange = kind;
          const auto [floor, total] =
              budgets_of(*Chain(4, 6), options, world.size());
          ChainBesideReference chain(world, options);
          auto& fsdp = chain.fsdp();
          chain.step();
          const auto first = chain.step();
          fsdp.set_strategy(Strategy::kShardGradOp);
          const auto once = chain.step();
          fsdp.set_budget_bytes(floor);
          const auto most = chain.step();
          {
            const torch::NoGradGuard no_grad;  // An evaluation is no step.
            (void)chain.model()->forward(integer_rows(0, 0, 6));
          }
          fsdp.set_strategy(Strategy::kFullShard);
          EXPECT_EQ(chain.step(), first);
          chain.expect_equal();
          if (world.size() > 1) {
            EXPECT_EQ(once, fsdp.report().units);
            EXPECT_GT(first, once);
            EXPECT_GE(most, first);
            // Each of them followed a plan at once.
            EXPECT_EQ(fsdp.report().plan.steps_planned, 4);
            EXPECT_LE(fsdp.report().budget_bytes, total);
          }
        }
      },
      two_hosts(GetParam())));
}

TEST_P(ByHand, B13InAStepAndWhereRanksDifferItIsRefused) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto options = over_messages();
    const auto floor = budgets_of(*Chain(4, 6), options, world.size()).floor;
    ChainBesideReference chain(world, options);
    auto& fsdp = chain.fsdp();
    const auto before = fsdp.report().budget_bytes;
    EXPECT_THAT(
        error_of([&] { fsdp.set_strategy(Strategy::kNoShard); }),
        HasSubstr("expected kFullShard or kShardGradOp"));
    const bool several = world.size() > 1;
    const auto refused = [&] {
      const auto error =
          error_of([&] { fsdp.set_strategy(Strategy::kShardGradOp); });
      EXPECT_THAT(
          error,
          HasSubstr(
              several ? "the budget changes between two steps" : "no error"));
    };
    chain.step([] {}, refused);  // Its backward works all the same.
    if (several) {
      EXPECT_THAT(
          error_of([&] { fsdp.set_budget_bytes(floor - 1); }),
          HasSubstr("below its floor of " + std::to_string(floor)));
      EXPECT_THAT(
          error_of([&] { fsdp.set_budget_bytes(floor + world.rank()); }),
          HasSubstr("different arguments to set_budget_bytes()"));
      const int last = world.size() - 1;
      EXPECT_THAT(
          error_of(
              [&] { fsdp.set_budget_bytes(world.rank() == last ? 1 : floor); }),
          HasSubstr(
              world.rank() == last
                  ? "below its floor"
                  : "refused on rank " + std::to_string(last)));
      EXPECT_EQ(fsdp.report().budget_bytes, before);
    }
    chain.step();
    chain.expect_equal();
  }));
}

TEST_P(ByHand, B13WhileATouchGoesOnNothingIsTakenFromIt) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto options = over_messages();
    const auto floor = budgets_of(*Chain(4, 6), options, world.size()).floor;
    ChainBesideReference chain(world, options);
    auto& fsdp = chain.fsdp();
    chain.step();
    const int last = world.size() - 1;
    const auto weight = chain.model()->layer(1).weight;
    std::optional<TouchScope> touched;
    {
      const torch::NoGradGuard no_grad;  // An evaluation is no step.
      touched.emplace(weight);
    }
    if (world.rank() != last) {
      touched.reset();
    }
    if (world.size() > 1) {
      EXPECT_THAT(
          error_of([&] { fsdp.set_budget_bytes(floor); }),
          HasSubstr(
              world.rank() == last
                  ? "in use by"
                  : "refused on rank " + std::to_string(last)));
    }
    fsdp.reshard();
    if (touched) {
      EXPECT_NE(weight.const_data_ptr(), nullptr);
    }
    touched.reset();
    chain.step();
    fsdp.set_budget_bytes(floor);
    chain.step();
    chain.expect_equal();
  }));
}

TEST_P(ByHand, ATouchThatOutlivesTheStepIsAnErrorThatNamesTheUnit) {
  if (GetParam() == 1) {
    return;  // Nothing is gathered or dropped.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    ChainBesideReference chain(world, over_messages());
    auto& fsdp = chain.fsdp();
    chain.step();
    std::optional<TouchScope> touched;
    {
      const torch::NoGradGuard no_grad;  // An evaluation is no step.
      touched.emplace(chain.model()->layer(1).weight);
    }
    EXPECT_THAT(
        error_of([&] { fsdp.publish(); }),
        HasSubstr("[fsdp] unit layers.1 is in use by an operator or"));
    touched.reset();
    fsdp.publish();
    chain.step();
    chain.expect_equal();
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ByHand,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
