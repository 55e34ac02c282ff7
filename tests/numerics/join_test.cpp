// SPDX-License-Identifier: Apache-2.0
//
// Sharded models on ranks with different numbers of inputs: the same as one process that runs, batch
// by batch, the passes of the ranks that still have some.
#include <array>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_models.h"
#include "support/uneven_inputs.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ShardedJoin : public testing::TestWithParam<int> {};

using Inputs = std::function<int(int rank)>;

struct UnevenRun {
  JoinOptions join = {};
  FullyShardOptions shard = {};
  int replicas = 1;
  Inputs inputs;
  MakeStep step = sign_steps();
  double tolerance = 0.0;
  bool forward_before = false;  // Of all ranks, without a backward.
};

// More units than may be reduced at a time.
Chain long_chain() { return Chain(6, 5); }

torch::Tensor chain_pass(Chain& model, int batch, int rank) {
  return model->forward(integer_rows(batch, rank, 5)).sum();
}

bool backward_of_active(
    Chain& reference, const World& world, const UnevenRun& run, int batch) {
  return backward_of_active<Chain>(
      reference, chain_pass, world, {run.join, run.inputs}, batch);
}

void expect_uneven_parity(const World& world, const UnevenRun& run) {
  Chain reference = long_chain();
  Chain model = long_chain();
  const Mesh mesh(world, {.replicate = run.replicas});
  const Slicing slicing(*reference, mesh, run.shard);
  const auto leaves = unique_parameters(*reference);
  const auto step_reference = run.step(tensors_of(leaves));
  auto fsdp = fully_shard(*model, mesh, run.shard);
  const auto step_shards = run.step(fsdp.parameters());
  int batch = 0;
  const auto after_backward = [&] {
    ASSERT_TRUE(backward_of_active(reference, world, run, batch++));
    expect_gradients(slicing, leaves, fsdp, run.tolerance);
    step_reference();
    step_shards();
    fsdp.publish();
  };
  if (run.forward_before) {
    (void)chain_pass(model, 0, world.rank());
  }
  auto join = fsdp.join(run.join);
  while (batch < run.inputs(world.rank())) {
    chain_pass(model, batch, world.rank()).backward();
    after_backward();
  }
  join.finish(after_backward);
  EXPECT_FALSE(backward_of_active(reference, world, run, batch));
  expect_parameters(leaves, *model, fsdp, run.tolerance);
  // Afterwards all take part again.
  reference_backward<Chain>(reference, leaves, chain_pass, 0, world, run.shard);
  chain_pass(model, 0, world.rank()).backward();
  expect_gradients(slicing, leaves, fsdp, run.tolerance);
  fsdp.close();
}

const std::vector<Inputs>& input_counts() {
  static const std::vector<Inputs> kCounts = {
      [](int rank) { return 3 + rank; }, [](int rank) { return 4 - rank; },
      [](int rank) { return rank == 1 ? 3 : 0; }, [](int) { return 2; },
      [](int) { return 0; }};
  return kCounts;
}

TEST_P(ShardedJoin, EqualsTheLoopOverRanksWithInputs) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& inputs : input_counts()) {
      expect_uneven_parity(world, {.inputs = inputs});
    }
    expect_uneven_parity(
        world,
        {.join = {.divide_by_initial_world_size = false},
         .inputs = input_counts()[0]});
  }));
}

TEST_P(ShardedJoin, AfterAForwardWithoutABackward) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    for (const auto& inputs : input_counts()) {
      expect_uneven_parity(
          world,
          {.shard = over_messages(), .inputs = inputs, .forward_before = true});
      expect_uneven_parity(world, {.inputs = inputs, .forward_before = true});
    }
  }));
}

TEST_P(ShardedJoin, WithEachStrategyAndLittleRoom) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    std::vector<FullyShardOptions> all(3);
    all[0].strategy = Strategy::kNoShard;
    all[1].strategy = Strategy::kShardGradOp;
    all[1].reductions_under_way_max = 1;
    all[2].budget_bytes = 512;
    all[2].gradient_divide_factor = world.size();
    for (const auto& shard : all) {
      expect_uneven_parity(
          world, {.shard = shard, .inputs = [](int rank) { return 2 + rank; }});
    }
  }));
}

TEST(ShardedJoinOfFour, OfReplicasThatShard) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto axes : {OptimizerAxes::kShard, OptimizerAxes::kBoth}) {
      FullyShardOptions shard;
      shard.optimizer_axes = axes;
      // A rank of each replica, and then a replica, runs out first.
      for (const Inputs& inputs :
           {Inputs([](int rank) { return 1 + rank % 2; }),
            Inputs([](int rank) { return 1 + rank / 2; })}) {
        expect_uneven_parity(
            world, {.shard = shard, .replicas = 2, .inputs = inputs});
      }
    }
  }));
}

// Clipping and the step are collective, and an optimizer publishes by itself.
TEST_P(ShardedJoin, WhatFollowsABackwardIsMadeOnAllRanks) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain reference = long_chain();
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world);
    auto adamw = AdamW(
        fsdp.named_parameters(), {.learning_rate = 0.01, .weight_decay = 0.01});
    torch::optim::AdamW adamw_reference(
        reference->parameters(),
        torch::optim::AdamWOptions(0.01).weight_decay(0.01));
    const UnevenRun run{.inputs = [](int rank) { return 1 + 2 * rank; }};
    int batch = 0;
    const auto after_backward = [&] {
      (void)backward_of_active(reference, world, run, batch++);
      const double norm =
          torch::nn::utils::clip_grad_norm_(reference->parameters(), 1.0);
      EXPECT_NEAR(fsdp.clip_grad_norm(1.0), norm, 1e-4 * norm);
      adamw_reference.step();
      adamw_reference.zero_grad();
      adamw.step();
      adamw.zero_grad();
    };
    auto join = fsdp.join();
    while (batch < run.inputs(world.rank())) {
      chain_pass(model, batch, world.rank()).backward();
      after_backward();
    }
    join.finish(after_backward);
    expect_parameters(unique_parameters(*reference), *model, fsdp, 1e-4);
  }));
}

struct NoSyncMesh {
  NoSyncAxis axis = NoSyncAxis::kBoth;
  int replicas = 1;
};

// The first of two micro-batches exchanges nothing, or nothing across replicas.
void expect_parity_under_no_sync(const World& world, const NoSyncMesh& of) {
  Chain reference = long_chain();
  Chain model = long_chain();
  const Mesh mesh(world, {.replicate = of.replicas});
  const auto leaves = unique_parameters(*reference);
  const auto step_reference = sign_steps()(tensors_of(leaves));
  auto fsdp = fully_shard(*model, mesh);
  const auto step_shards = sign_steps()(fsdp.parameters());
  const UnevenRun run{.inputs = [](int rank) { return 2 * (1 + rank); }};
  int batch = 0;
  const auto after_backward = [&] {
    // Each is divided by the number of ranks, so that they add up.
    Leaves sums;
    for (int micro = 0; micro < 2; ++micro) {
      ASSERT_TRUE(backward_of_active(reference, world, run, batch++));
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        auto& grad = leaves[i].tensor.mutable_grad();
        micro == 0 ? sums.push_back(grad) : (void)sums[i].add_(grad);
        grad.reset();
      }
    }
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      leaves[i].tensor.mutable_grad() = sums[i];
    }
    step_reference();
    step_shards();
    fsdp.publish();
  };
  auto join = fsdp.join();
  while (batch < run.inputs(world.rank())) {
    {
      const auto scope = fsdp.no_sync({.axis = of.axis});
      chain_pass(model, batch, world.rank()).backward();
    }
    chain_pass(model, batch + 1, world.rank()).backward();
    after_backward();
  }
  join.finish(after_backward);
  expect_parameters(leaves, *model, fsdp, 0.0);
}

constexpr std::array kNoSyncAxes = {NoSyncAxis::kBoth, NoSyncAxis::kReplicate};

TEST_P(ShardedJoin, UnderNoSync) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    expect_parity_under_no_sync(world, {});
    if (world.size() == 2) {  // Replicas of one rank.
      for (const auto axis : kNoSyncAxes) {
        expect_parity_under_no_sync(world, {.axis = axis, .replicas = 2});
      }
    }
  }));
}

TEST(ShardedJoinOfFour, UnderNoSyncOfReplicasThatShard) {
  expect_all_ok(run_ranks(4, [](World world) {
    for (const auto axis : kNoSyncAxes) {
      expect_parity_under_no_sync(world, {.axis = axis, .replicas = 2});
    }
  }));
}

TEST_P(ShardedJoin, TheFirstWithoutInputsMayEndItForAll) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    if (world.size() == 1) {
      return;
    }
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world);
    const int first = world.size() - 1;
    const auto error = error_of([&] {
      auto join = fsdp.join({.throw_on_early_termination = true});
      for (int batch = 0; batch < (world.rank() == first ? 2 : 4); ++batch) {
        chain_pass(model, batch, world.rank()).backward();
        fsdp.publish();
      }
      join.finish([] {});
    });
    EXPECT_THAT(
        error,
        AllOf(
            HasSubstr("rank " + std::to_string(first)),
            HasSubstr("no more inputs after 2 backwards")));
    // All have left at the same place.
    chain_pass(model, 0, world.rank()).backward();
  }));
}

// A backward that one rank gives up is an error of those with inputs only.
TEST_P(ShardedJoin, ABackwardThatFailsMeanwhile) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world);
    const auto step = sign_steps()(fsdp.parameters());
    auto join = fsdp.join();
    int steps = 0;
    const auto after_backward = [&] {
      step();
      fsdp.publish();
      ++steps;
    };
    const int inputs = world.rank() == 0 ? 3 : 1;
    for (int batch = 0; batch < inputs; ++batch) {
      auto x = integer_rows(batch, world.rank(), 5).requires_grad_();
      if (batch == 1) {
        x.register_hook([](const torch::Tensor&) -> torch::Tensor {
          throw std::runtime_error("poisoned by the test");
        });
      }
      const auto error = error_of([&] { model->forward(x).sum().backward(); });
      EXPECT_EQ(error != "no error", batch == 1) << error;
      if (batch != 1) {
        after_backward();
      }
    }
    join.finish(after_backward);
    EXPECT_EQ(steps, 2);
    chain_pass(model, 0, world.rank()).backward();
  }));
}

// What rank 0 does wrong with its scope is an error of the others, too.
void expect_lost(
    const std::function<void(JoinScope)>& wrong, const std::string& reason) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  const auto body = [&](World world) {
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world);
    const auto pass = [&] { (void)chain_pass(model, 0, world.rank()); };
    auto join = fsdp.join();
    if (world.rank() == 0) {
      wrong(std::move(join));
      EXPECT_THAT(error_of(pass), HasSubstr(reason));
    } else {
      EXPECT_THAT(
          error_of(pass), AllOf(HasSubstr("rank 0"), HasSubstr(reason)));
    }
  };
  expect_all_ok(run_ranks(3, body, ranks));
}

TEST(ShardedJoinOfThree, LeavingWithoutFinishIsToldToTheOthers) {
  expect_lost([](const JoinScope&) {}, "without finish()");
}

TEST(ShardedJoinOfThree, FinishMustKnowWhatFollowsABackward) {
  expect_lost(
      [](JoinScope join) {
        EXPECT_THAT(
            error_of([&] { join.finish(); }),
            HasSubstr("expected a function that makes the optimizer's step"));
      },
      "makes the optimizer's step");
}

TEST(ShardedJoinOfTwo, RanksThatDifferInNoSyncAreNamed) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  const auto body = [](World world) {
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world);
    auto join = fsdp.join();
    std::optional<NoSyncScope> scope;
    if (world.rank() == 1) {
      scope.emplace(fsdp.no_sync());
    }
    EXPECT_THAT(
        error_of([&] { (void)chain_pass(model, 0, world.rank()); }),
        AllOf(
            HasSubstr("rank 0 reduces gradients"),
            HasSubstr("rank 1 is under no_sync()")));
  };
  expect_all_ok(run_ranks(2, body, ranks));
}

TEST(ShardedJoinOfTwo, WaitsForTheDecisionOfAMemoryLimit) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model = long_chain();
    FullyShardOptions options;
    options.memory_bytes = std::int64_t{1} << 40;
    auto fsdp = fully_shard(*model, world, options);
    EXPECT_THAT(
        error_of([&] { (void)fsdp.join(); }),
        HasSubstr("expected five steps before it"));
  }));
}

// As long as every rank has inputs a step costs what it costs without the scope.
TEST(ShardedJoinOfTwo, FollowsThePlanWhileAllHaveInputs) {
  expect_all_ok(run_ranks(2, [](World world) {
    std::vector<ShardReport> reports;
    for (const bool joined : {false, true}) {
      Chain model = long_chain();
      auto fsdp = fully_shard(*model, world, over_messages());
      std::optional<JoinScope> join;
      if (joined) {
        join.emplace(fsdp.join());
      }
      for (int batch = 0; batch < 4; ++batch) {
        chain_pass(model, batch, world.rank()).backward();
        fsdp.publish();
      }
      reports.push_back(fsdp.report());
      if (join) {
        join->finish([] {});
      }
    }
    EXPECT_EQ(reports[0].plan.steps_planned, reports[1].plan.steps_planned);
    EXPECT_EQ(reports[0].unshards, reports[1].unshards);
    EXPECT_GT(reports[0].plan.steps_planned, 0);
  }));
}

// Other ranks may have no inputs, and then take no part in a gather that names a unit of forward.
TEST(ShardedJoinOfTwo, UnitsMayBeUnshardedByHand) {
  expect_all_ok(run_ranks(2, [](World world) {
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world, over_messages());
    auto join = fsdp.join();
    int steps = 0;
    const auto after_backward = [&] {
      fsdp.publish();
      ++steps;
    };
    for (int batch = 0; batch <= 2 * world.rank(); ++batch) {
      auto before_all_have_told = fsdp.unshard("layers.5");
      EXPECT_FALSE(before_all_have_told.wait());
      auto x = integer_rows(batch, world.rank(), 5);
      for (std::size_t layer = 0; layer < 6; ++layer) {
        if (layer == 2) {
          fsdp.unshard("layers.4").wait();
        }
        x = model->layer(layer).forward(x).clamp(-2, 2);
      }
      model->head(x).sum().backward();
      after_backward();
    }
    join.finish(after_backward);
    EXPECT_EQ(steps, 3);
    fsdp.close();
  }));
}

TEST(ShardedJoinOfTwo, AStepThatFailsWithoutInputsIsToldToTheOther) {
  RankOptions ranks;
  ranks.close_world = false;  // It is lost.
  const auto body = [](World world) {
    Chain model = long_chain();
    auto fsdp = fully_shard(*model, world, over_messages());
    auto join = fsdp.join();
    const auto error = error_of([&] {
      for (int batch = 0; batch < 3 * world.rank(); ++batch) {
        chain_pass(model, batch, world.rank()).backward();
        fsdp.publish();
      }
      join.finish([] { throw std::runtime_error("no step by the test"); });
    });
    EXPECT_THAT(error, HasSubstr("no step by the test"));
    if (world.rank() == 1) {
      EXPECT_THAT(error, HasSubstr("rank 0"));
    }
  };
  expect_all_ok(run_ranks(2, body, ranks));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    ShardedJoin,
    testing::Values(1, 2, 3, 4),
    testing::PrintToStringParamName());

}  // namespace
}  // namespace sherd::test
