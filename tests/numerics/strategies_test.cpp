// SPDX-License-Identifier: Apache-2.0
//
// Whatever strategy or byte budget: the numbers of one process. Ids are those
// of docs/design/tests.md.
#include "support/budgets.h"
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <map>

namespace sherd::test {
namespace {

class Strategies : public testing::TestWithParam<int> {};

TEST_P(Strategies, T01IntegersAreEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.units = units::by_name("*");
    expect_rank_parity<IntegerMlp>(
        world, [] { return IntegerMlp(); }, integer_loss, options);
  }));
}

TEST_P(Strategies, T01OneProcessOnTheConcatenatedBatchIsEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    IntegerMlp reference;
    IntegerMlp model;
    FullyShardOptions options;
    options.units = units::by_name("*");
    const Slicing slicing(*reference, world, options);
    auto fsdp = fully_shard(*model, world, options);
    std::vector<torch::Tensor> rows;
    for (int rank = 0; rank < world.size(); ++rank) {
      rows.push_back(integer_rows(0, rank, 7));
    }
    reference->forward(torch::cat(rows)).sum().backward();
    const auto leaves = unique_parameters(*reference);
    for (const auto& leaf : leaves) {
      leaf.tensor.mutable_grad().mul_(1.0 / world.size());
    }
    integer_loss(model, 0, world.rank()).backward();
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }));
}

TEST_P(Strategies, T01MoreRanksThanElementsLeavesSomeRanksWithNothing) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.step = steps_of<torch::optim::SGD>(torch::optim::SGDOptions(0.5));
    expect_rank_parity<torch::nn::Linear>(
        world,
        [] {
          torch::nn::Linear linear(2, 1);
          fill_with_integers(*linear);
          return linear;
        },
        [](torch::nn::Linear& linear, int batch, int rank) {
          return linear(integer_rows(batch, rank, 2)).sum();
        },
        options);
  }));
}

TEST_P(Strategies, T02EveryStrategyIsEqualInBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      RankParity options;
      options.shard.strategy = strategy;
      expect_rank_parity<Chain>(
          world, [] { return Chain(5, 6); },
          [](Chain& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, 6)).sum();
          },
          options);
    }
  }));
}

TEST_P(Strategies, T02EveryBudgetFromTheFloorToAllIsEqualAndKept) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto sizes = budgets_of(*Chain(5, 6), {}, world.size());
    ASSERT_LT(sizes.floor, sizes.total);
    const auto step = (sizes.total - sizes.floor) / 4;
    for (auto budget = sizes.floor; budget <= sizes.total + step;
         budget += step) {
      RankParity options;
      options.shard = over_messages();
      options.shard.budget_bytes = budget;
      const auto report = expect_rank_parity<Chain>(
          world, [] { return Chain(5, 6); },
          [](Chain& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, 6)).sum();
          },
          options);
      if (world.size() > 1) {
        EXPECT_EQ(report.budget_bytes, budget);
        EXPECT_LE(report.unsharded_bytes_peak, budget);
        EXPECT_GE(report.unsharded_bytes_peak, sizes.floor / 2);
      }
    }
  }));
}

TEST_P(Strategies, B14HowFarAheadUnitsAreGatheredChangesNoNumber) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const int visits : {0, 2, 5}) {
      RankParity options;
      options.shard = over_messages({.prefetch_visits = visits});
      const auto report = expect_rank_parity<Chain>(
          world, [] { return Chain(5, 6); },
          [](Chain& model, int batch, int rank) {
            return model->forward(integer_rows(batch, rank, 6)).sum();
          },
          options);
      EXPECT_LE(report.unsharded_bytes_peak, report.budget_bytes);
    }
    Chain model(2, 6);
    EXPECT_NE(
        error_of([&] {
          (void)fully_shard(*model, world, {.prefetch_visits = -1});
        }).find("options.prefetch_visits is -1"),
        std::string::npos);
    if (world.size() > 1) {
      const auto differs =
          over_messages({.prefetch_visits = world.rank() == 1 ? 3 : 2});
      const auto error =
          error_of([&] { (void)fully_shard(*model, world, differs); });
      EXPECT_NE(error.find("prefetch_visits 2"), std::string::npos) << error;
      EXPECT_NE(error.find("prefetch_visits 3"), std::string::npos) << error;
    }
  }));
}

TEST_P(Strategies, T02ALargerBudgetGathersLess) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    const auto sizes = budgets_of(*Chain(5, 6), {}, world.size());
    std::vector<std::int64_t> unshards;
    for (const auto budget : {sizes.floor, sizes.total}) {
      RankParity options;
      options.shard = over_messages();
      options.shard.budget_bytes = budget;
      unshards.push_back(
          expect_rank_parity<Chain>(
              world, [] { return Chain(5, 6); },
              [](Chain& model, int batch, int rank) {
                return model->forward(integer_rows(batch, rank, 6)).sum();
              },
              options)
              .unshards);
    }
    if (world.size() > 1) {
      // All six units once a step, and once for the final comparison.
      EXPECT_EQ(unshards[1], 6 * 3 + 6);
      EXPECT_GT(unshards[0], unshards[1]);
    } else {
      EXPECT_EQ(unshards[0], 0);
    }
  }));
}

TEST_P(Strategies, MicroBatchesAddUpInTheShard) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      RankParity options;
      options.micro_batches = 3;
      options.shard.units = units::by_name("*");
      options.shard.strategy = strategy;
      expect_rank_parity<IntegerMlp>(
          world, [] { return IntegerMlp(); }, integer_loss, options);
    }
  }));
}

TEST_P(Strategies, AdamWOverShardsEqualsAdamWOverTheModel) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy : {Strategy::kFullShard, Strategy::kNoShard}) {
      RankParity options;
      options.steps = 5;
      options.micro_batches = 2;
      // Kernels treat the last elements of a slice one by one.
      options.tolerance = 1e-6;
      options.step = steps_of<torch::optim::AdamW>(
          torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
      options.shard.units = units::by_name("*");
      options.shard.strategy = strategy;
      expect_rank_parity<IntegerMlp>(
          world, [] { return IntegerMlp(); }, integer_loss, options);
    }
  }));
}

TEST_P(Strategies, GranularityKeepsRowsWholeAndNumbersEqual) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    RankParity options;
    options.shard.units = units::by_name("*");
    options.shard.granularity = [](const std::string&, const at::Tensor& t) {
      return t.dim() > 1 ? t.size(1) : t.numel();
    };
    expect_rank_parity<IntegerMlp>(
        world, [] { return IntegerMlp(); }, integer_loss, options);
    IntegerMlp model;
    std::map<std::string, std::int64_t> blocks;
    for (auto& item : model->named_parameters()) {
      const torch::NoGradGuard no_grad;
      auto& whole = item.value();
      whole.copy_(torch::arange(whole.numel()).view_as(whole));
      blocks[item.key()] = options.shard.granularity(item.key(), whole);
    }
    auto fsdp = fully_shard(*model, world, options.shard);
    for (const auto& item : fsdp.named_parameters().items) {
      // Elements are their own places.
      const auto begin = item.slice[0].item<std::int64_t>();
      EXPECT_EQ(begin % blocks[item.name], 0) << item.name;
      EXPECT_EQ(item.slice.numel() % blocks[item.name], 0) << item.name;
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Strategies,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
