// SPDX-License-Identifier: Apache-2.0
//
// Micro-batches: gradients that add up in shards, in full size under no_sync,
// or in both; the plan of a step with several of them (T11, T12, A30, A31, B10, B11).
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"

#include <functional>
#include <memory>
#include <optional>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>

namespace sherd::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kWidth = 6;
constexpr int kMicroBatches = 3;

Chain wide_chain() { return Chain(4, kWidth); }

// Twelve times, so that the mean over up to four ranks is an integer, too.
torch::Tensor loss_of(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, kWidth)).sum() * 12;
}

class Accumulation : public testing::TestWithParam<int> {};

// Which of the micro-batches do not reduce.
const std::vector<std::vector<bool>> kPatterns{
    {false, false, false},
    {true, true, false},
    {true, false, false},
    {false, true, false}};

// Sums of small integers are exact, so every way to add them gives equal bits.
TEST_P(Accumulation, T11EveryWayToAddUpGivesTheSameBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      for (const auto& pattern : kPatterns) {
        Chain reference = wide_chain();
        Chain model = wide_chain();
        FullyShardOptions options;
        options.strategy = strategy;
        const Slicing slicing(*reference, world, options);
        const auto leaves = unique_parameters(*reference);
        auto fsdp = fully_shard(*model, world, options);
        const auto step_reference = sign_steps()(tensors_of(leaves));
        const auto step_shards = sign_steps()(fsdp.parameters());
        for (int step = 0; step < 3; ++step) {
          for (int micro = 0; micro < kMicroBatches; ++micro) {
            const int batch = step * kMicroBatches + micro;
            reference_backward<Chain>(reference, leaves, loss_of, batch, world);
            std::optional<NoSyncScope> scope;
            if (pattern[static_cast<std::size_t>(micro)]) {
              scope.emplace(fsdp.no_sync());
            }
            loss_of(model, batch, world.rank()).backward();
          }
          expect_gradients(slicing, leaves, fsdp, 0.0);
          step_reference();
          step_shards();
          fsdp.publish();
        }
        expect_parameters(leaves, *model, fsdp, 0.0);
      }
    }
  }));
}

// As in a stage of a pipeline (1F1B): each backward follows the forward of the next micro-batch,
// and only the last one of a step reduces.
TEST_P(Accumulation, T12OneForwardOneBackwardAddsUpTheSameGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto strategy :
         {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
      Chain reference = wide_chain();
      Chain model = wide_chain();
      FullyShardOptions options;
      options.strategy = strategy;
      const Slicing slicing(*reference, world, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, world, options);
      const auto step_reference = sign_steps()(tensors_of(leaves));
      const auto step_shards = sign_steps()(fsdp.parameters());
      for (int step = 0; step < 3; ++step) {
        const int first = step * kMicroBatches;
        const int last = first + kMicroBatches - 1;
        for (int batch = first; batch <= last; ++batch) {
          reference_backward<Chain>(reference, leaves, loss_of, batch, world);
        }
        auto loss = loss_of(model, first, world.rank());
        for (int batch = first; batch <= last; ++batch) {
          const auto earlier = loss;
          if (batch == last) {
            earlier.backward();
            continue;
          }
          loss = loss_of(model, batch + 1, world.rank());
          const auto scope = fsdp.no_sync();
          earlier.backward();
        }
        EXPECT_EQ(fsdp.report().backwards, world.size() == 1 ? 0 : step + 1);
        expect_gradients(slicing, leaves, fsdp, 0.0);
        step_reference();
        step_shards();
        fsdp.publish();
      }
      expect_parameters(leaves, *model, fsdp, 0.0);
    }
  }));
}

TEST_P(Accumulation, T11UnderNoSyncNothingIsReduced) {
  if (GetParam() == 1) {
    return;  // Nothing ever is.
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model = wide_chain();
    auto fsdp = fully_shard(*model, world);
    const auto units = fsdp.report().units;
    {
      const auto scope = fsdp.no_sync();
      loss_of(model, 0, world.rank()).backward();
    }
    EXPECT_EQ(fsdp.report().reduces, 0);
    EXPECT_EQ(fsdp.report().backwards, 0);
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_FALSE(slice.grad().defined());
    }
    loss_of(model, 1, world.rank()).backward();
    EXPECT_EQ(fsdp.report().reduces, units);
  }));
}

// A parameter that only a micro-batch under no_sync used has a gradient.
TEST_P(Accumulation, T11WhatOnlyNoSyncUsedIsReducedToo) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model = wide_chain();
    auto fsdp = fully_shard(*model, world);
    const auto pass = [&](const std::vector<std::size_t>& order) {
      auto x = integer_rows(0, world.rank(), kWidth);
      for (const auto i : order) {
        x = model->layer(i).forward(x);
      }
      x.sum().backward();
    };
    {
      const auto scope = fsdp.no_sync();
      pass({0, 1});
    }
    pass({2});
    for (const auto& item : fsdp.named_parameters().items) {
      const bool used = item.name.find("layers.3") == std::string::npos &&
          item.name.find("head") == std::string::npos;
      EXPECT_EQ(item.slice.grad().defined(), used) << item.name;
    }
  }));
}

// With an optimizer of sherd's own nothing is published before step(): what is
// whole stays whole, and graphs of earlier micro-batches stay usable.
TEST_P(Accumulation, ForwardsBetweenBackwardAndStepReadTheSameValues) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model = wide_chain();
    FullyShardOptions options;
    options.strategy = Strategy::kShardGradOp;
    auto fsdp = fully_shard(*model, world, options);
    AdamW adamw(fsdp.named_parameters(), {});
    const auto units = world.size() == 1 ? 0 : fsdp.report().units;
    for (int step = 1; step <= 2; ++step) {
      auto first = loss_of(model, 0, world.rank());
      auto second = loss_of(model, 1, world.rank());
      first.backward();
      auto third = loss_of(model, 2, world.rank());
      second.backward();
      third.backward();
      adamw.step();
      adamw.zero_grad();
      EXPECT_EQ(fsdp.report().unshards, step * units);
    }
  }));
}

TEST_P(Accumulation, AReadOnlySummonLeavesGraphsUsable) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model = wide_chain();
    auto fsdp = fully_shard(*model, world);
    auto loss = loss_of(model, 0, world.rank());
    {
      const auto scope = fsdp.summon_full_parameters({.read_only = true});
    }
    loss.backward();
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_TRUE(slice.grad().defined());
    }
  }));
}

// With an optimizer of sherd's own nothing is written between the two backwards.
TEST_P(Accumulation, ScopesThatOnlyReadLeaveGraphsUsableAfterABackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto kind : {ExchangeKind::kAuto, ExchangeKind::kCollective}) {
      FullyShardOptions options;
      options.exchange = kind;
      for (const bool narrow : {false, true}) {
        if (narrow) {
          options.mixed_precision = {.param_dtype = torch::kBFloat16};
        }
        const auto gradients_with = [&](const auto& read) {
          Chain model = wide_chain();
          auto fsdp = fully_shard(*model, world, options);
          AdamW adamw(fsdp.named_parameters(), {});
          const auto loss = [&](int batch) {
            return loss_of(model, batch, world.rank());
          };
          const auto first = loss(0);
          const auto second = loss(1);
          first.backward();
          read(fsdp, loss);
          second.backward();
          std::vector<torch::Tensor> gradients;
          for (const auto& slice : fsdp.parameters()) {
            gradients.push_back(slice.grad().clone());
          }
          adamw.step();
          return gradients;
        };
        const auto expected = gradients_with([](auto&, const auto&) {});
        const auto summoned = gradients_with([](auto& fsdp, const auto&) {
          const auto scope = fsdp.summon_full_parameters(
              {.read_only = true, .with_gradients = true});
        });
        const auto in_full_precision =
            gradients_with([](auto& fsdp, const auto&) {
              const auto scope = fsdp.full_precision();
            });
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_TRUE(torch::equal(summoned[i], expected[i]));
          EXPECT_TRUE(torch::equal(in_full_precision[i], expected[i]));
        }
        if (narrow || kind == ExchangeKind::kCollective) {
          // What is evaluated inside the scope are values of before the step.
          (void)gradients_with([&](auto& fsdp, const auto& loss) {
            const torch::NoGradGuard no_grad;
            const auto scope = fsdp.full_precision();
            EXPECT_TRUE(loss(2).isfinite().template item<bool>());
          });
        }
      }
    }
  }));
}

// A layer runs without gradients, as in the first pass of a reentrant checkpoint.
torch::Tensor loss_with_a_part_unrecorded(Chain& model, int batch, int rank) {
  const auto x = model->layer(0).forward(integer_rows(batch, rank, kWidth));
  torch::Tensor unrecorded;
  {
    const torch::NoGradGuard no_grad;
    unrecorded = model->layer(1).forward(x);
  }
  return model->head(x + unrecorded).sum() * 12;
}

const std::vector<ExchangeKind> kKinds{
    ExchangeKind::kAuto, ExchangeKind::kCollective};

TEST_P(Accumulation, AForwardBetweenBackwardAndStepMayHaveUnrecordedParts) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto kind : kKinds) {
      Chain reference = wide_chain();
      Chain model = wide_chain();
      FullyShardOptions options;
      options.exchange = kind;
      const Slicing slicing(*reference, world, options);
      const auto leaves = unique_parameters(*reference);
      auto fsdp = fully_shard(*model, world, options);
      Sgd sgd(fsdp.named_parameters(), {});
      for (int batch = 0; batch < kMicroBatches; ++batch) {
        reference_backward<Chain>(
            reference, leaves, loss_with_a_part_unrecorded, batch, world);
        loss_with_a_part_unrecorded(model, batch, world.rank()).backward();
      }
      expect_gradients(slicing, leaves, fsdp, 0.0);
      sgd.step();
    }
  }));
}

// Trains two steps, and evaluates between backward and step of each by `evaluate_between`, which gets
// the evaluation and the loss that it found before the first step.
template <typename Between>
void evaluate_before_steps(
    const World& world,
    const FullyShardOptions& options,
    const Between& evaluate_between) {
  Chain model = wide_chain();
  auto fsdp = fully_shard(*model, world, options);
  Sgd sgd(fsdp.named_parameters(), {});
  const auto evaluate = [&] {
    const torch::NoGradGuard no_grad;
    return loss_of(model, 1, world.rank()).item<double>();
  };
  for (int step = 0; step < 2; ++step) {
    const auto before = evaluate();
    loss_of(model, 0, world.rank()).backward();
    evaluate_between(evaluate, before);
    sgd.step();
    sgd.zero_grad();
    EXPECT_NE(evaluate(), before);
  }
}

TEST_P(Accumulation, AnEvaluationBetweenBackwardAndStepReadsTheOldValues) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    FullyShardOptions options;
    options.strategy = Strategy::kNoShard;
    const auto same = [](const auto& evaluate, double before) {
      EXPECT_EQ(evaluate(), before);
    };
    evaluate_before_steps(world, options, same);
    evaluate_before_steps(world, over_messages(), same);
  }));
}

TEST_P(Accumulation, AnEvaluationBeforeTheStepIsRefusedOverSharedMemory) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    FullyShardOptions options;
    options.exchange = ExchangeKind::kSharedMemory;
    evaluate_before_steps(
        world, options, [](const auto& evaluate, double /*before*/) {
          EXPECT_THAT(error_of(evaluate), HasSubstr("evaluate after the step"));
        });
  }));
}

// What an optimizer of LibTorch has written, nobody knows.
TEST_P(Accumulation, AnEvaluationBeforeThePublishIsRefused) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto kind : kKinds) {
      Chain model = wide_chain();
      FullyShardOptions options;
      options.exchange = kind;
      auto fsdp = fully_shard(*model, world, options);
      loss_of(model, 0, world.rank()).backward();
      const torch::NoGradGuard no_grad;
      EXPECT_THAT(
          error_of([&] { (void)loss_of(model, 1, world.rank()); }),
          HasSubstr("call fsdp.publish() on every rank"));
    }
  }));
}

using ZeroGrad = std::function<void()>;

template <typename Optimizer>
ZeroGrad zero_grad_of(const NamedParameters& parameters) {
  return [optimizer = std::make_shared<Optimizer>(parameters)] {
    optimizer->zero_grad();
  };
}

// Muon has the matrices, AdamW the rest.
ZeroGrad zero_grad_of_two(const NamedParameters& parameters) {
  const auto parts = split(parameters, {"*.weight"});
  return [matrices = zero_grad_of<Muon>(parts.matching),
          rest = zero_grad_of<AdamW>(parts.rest)] {
    matrices();
    rest();
  };
}

using MakeZeroGrad = ZeroGrad (*)(const NamedParameters&);

void expect_dropped_by(
    MakeZeroGrad optimizer,
    const World& world,
    const FullyShardOptions& options) {
  Chain reference = wide_chain();
  Chain model = wide_chain();
  const Slicing slicing(*reference, world, options);
  const auto leaves = unique_parameters(*reference);
  auto fsdp = fully_shard(*model, world, options);
  const auto zero_grad = optimizer(fsdp.named_parameters());
  {
    const auto scope = fsdp.no_sync();
    loss_of(model, 0, world.rank()).backward();
  }
  zero_grad();
  loss_of(model, 1, world.rank()).backward();
  reference_backward<Chain>(reference, leaves, loss_of, 1, world);
  expect_gradients(slicing, leaves, fsdp, 0.0);
}

TEST_P(Accumulation, ZeroGradOfAnOptimizerDropsWhatNoSyncHasKept) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_dropped_by(zero_grad_of<AdamW>, world, {});
    expect_dropped_by(zero_grad_of<Sgd>, world, {});
  }));
}

TEST_P(Accumulation, ZeroGradOfMuonDropsWhatWasKeptOverSharedMemory) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    FullyShardOptions options;
    options.exchange = ExchangeKind::kSharedMemory;
    options.share_gradients = true;
    expect_dropped_by(zero_grad_of_two, world, options);
  }));
}

// An optimizer drops what was kept of its own parameters only.
TEST_P(Accumulation, ZeroGradOfOneOfTwoOptimizersLeavesTheOthersGradients) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference = wide_chain();
    Chain model = wide_chain();
    const Slicing slicing(*reference, world, {});
    auto leaves = unique_parameters(*reference);
    auto fsdp = fully_shard(*model, world);
    const auto parts = split(fsdp.named_parameters(), {"*.weight"});
    AdamW weights(parts.matching, {});
    {
      const auto scope = fsdp.no_sync();
      loss_of(model, 0, world.rank()).backward();
    }
    weights.zero_grad();
    loss_of(model, 1, world.rank()).backward();
    reference_backward<Chain>(reference, leaves, loss_of, 0, world);
    for (const auto& leaf : leaves) {
      if (leaf.name.ends_with(".weight")) {
        leaf.tensor.mutable_grad().reset();
      }
    }
    reference_backward<Chain>(reference, leaves, loss_of, 1, world);
    expect_gradients(slicing, leaves, fsdp, 0.0);
  }));
}

// What the plan says is what the exchange counted, from the floor to everything.
TEST_P(Accumulation, T11T27ThePlanPredictsWhatIsGathered) {
  if (GetParam() == 1) {
    return;
  }
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain probe = wide_chain();
    const auto largest = [&] {
      auto all = over_messages();
      all.strategy = Strategy::kShardGradOp;
      return fully_shard(*probe, world, all).report().budget_bytes;
    }();
    for (const int micro_batches : {1, 3}) {
      for (std::int64_t budget = largest / 3; budget <= largest;
           budget += largest / 6) {
        Chain model = wide_chain();
        auto options = over_messages();
        options.budget_bytes = budget;
        auto fsdp = fully_shard(*model, world, options);
        AdamW adamw(fsdp.named_parameters(), {});
        ShardReport before;
        for (int step = 0; step < 4; ++step) {
          before = fsdp.report();
          for (int micro = 0; micro < micro_batches; ++micro) {
            loss_of(model, micro, world.rank()).backward();
          }
          adamw.step();
          adamw.zero_grad();
        }
        const auto after = fsdp.report();
        EXPECT_EQ(after.plan.steps_planned, 3);
        EXPECT_EQ(after.plan.deviations, 0);
        EXPECT_EQ(after.unshards - before.unshards, after.plan.gathers);
        EXPECT_EQ(
            after.unsharded_bytes - before.unsharded_bytes,
            after.plan.gathered_bytes);
        EXPECT_LE(after.plan.lower_bound_bytes, after.plan.gathered_bytes);
        EXPECT_LE(after.unsharded_bytes_peak, budget);
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    Accumulation,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
