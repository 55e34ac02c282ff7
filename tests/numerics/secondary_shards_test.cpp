// SPDX-License-Identifier: Apache-2.0
//
// Units cut over groups of ranks between forward and backward (B3: the int of reshard_after_forward).
#include "support/over_messages.h"
#include "support/rank_parity.h"
#include "support/ranks.h"
#include "support/small_decoders.h"
#include "support/small_models.h"

#include <gmock/gmock.h>

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct GroupedRun {
  std::vector<torch::Tensor> tensors;  // Losses, gradients and slices.
  ShardReport report;
};

// Steps of two micro-batches with an evaluation before each.
GroupedRun run_grouped(
    const Mesh& mesh, const FullyShardOptions& options, int secondary_ranks) {
  auto grouped = options;
  grouped.secondary_ranks = secondary_ranks;
  auto model = small_gpt({.tied = false});
  auto fsdp = fully_shard(*model, mesh, grouped);
  torch::optim::SGD sgd(fsdp.parameters(), torch::optim::SGDOptions(0.3));
  const int rank = mesh.world().rank();
  GroupedRun run;
  for (int step = 0; step < 2; ++step) {
    {
      const torch::NoGradGuard no_grad;
      run.tensors.push_back(token_loss(model, 10 + step, rank));
    }
    for (const int micro_batch : {0, 1}) {
      auto loss = token_loss(model, 2 * step + micro_batch, rank);
      run.tensors.push_back(loss.detach());
      loss.backward();
    }
    for (const auto& slice : fsdp.parameters()) {
      run.tensors.push_back(slice.grad().clone());
    }
    sgd.step();
    sgd.zero_grad();
    fsdp.publish();
  }
  for (const auto& slice : fsdp.parameters()) {
    run.tensors.push_back(slice.detach().clone());
  }
  run.report = fsdp.report();
  return run;
}

void expect_same_run(const GroupedRun& found, const GroupedRun& expected) {
  ASSERT_EQ(found.tensors.size(), expected.tensors.size());
  for (std::size_t i = 0; i < found.tensors.size(); ++i) {
    EXPECT_TRUE(torch::equal(found.tensors[i], expected.tensors[i]))
        << "tensor " << i;
  }
}

std::vector<FullyShardOptions> grouped_options() {
  std::vector<FullyShardOptions> all = {
      over_messages(),
      over_messages({.prefetch_visits = 0}),
      {.exchange = ExchangeKind::kSharedMemory}};
  all.push_back(over_messages({.optimizer_axes = OptimizerAxes::kBoth}));
  all.push_back(over_messages());
  all.back().mixed_precision.param_dtype = at::kBFloat16;
  all.push_back(over_messages());
  all.back().gather_hook = quantise_gathers({.block = 64});
  all.push_back(over_messages());
  all.back().hook = compress(at::kBFloat16);
  return all;
}

class SecondaryShardsOn : public ::testing::TestWithParam<int> {};

void expect_same_in_groups(const Mesh& mesh, const FullyShardOptions& options) {
  const auto plain = run_grouped(mesh, options, 0);
  for (int group = 2; group <= mesh.shard_size(); ++group) {
    if (mesh.shard_size() % group != 0) {
      continue;
    }
    SCOPED_TRACE(str("groups of ", group));
    const auto grouped = run_grouped(mesh, options, group);
    expect_same_run(grouped, plain);
    EXPECT_EQ(grouped.report.unshards, plain.report.unshards);
    const bool shared =
        options.exchange == ExchangeKind::kSharedMemory && !options.gather_hook;
    EXPECT_EQ(grouped.report.shard_bytes > plain.report.shard_bytes, !shared);
  }
}

TEST_P(SecondaryShardsOn, B3TrainToTheSameBits) {
  expect_all_ok(run_ranks(GetParam(), [](World world) {
    int number = 0;
    for (const auto& options : grouped_options()) {
      SCOPED_TRACE(str("options ", number++));
      expect_same_in_groups(Mesh(world), options);
      if (world.size() == 4) {
        expect_same_in_groups(Mesh(world, {.replicate = 2}), options);
      }
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    SecondaryShardsOn,
    ::testing::Values(2, 3, 4),
    ::testing::PrintToStringParamName());

// Each unit once a step from all ranks, as often as it is gathered again from the group alone.
TEST(SecondaryShardsOfRanks, B3GathersAfterTheFirstStayWithinGroups) {
  expect_all_ok(run_ranks(4, [](World world) {
    constexpr int kGroup = 2;
    constexpr int kRanks = 4;
    constexpr int kSteps = 3;
    auto options = over_messages({.secondary_ranks = kGroup});
    auto model = small_gpt({.tied = false});
    const auto units = fsdp::build_units(*model, kRanks, options);
    auto fsdp = fully_shard(*model, world, options);
    for (int step = 0; step < kSteps; ++step) {
      token_loss(model, step, world.rank()).backward();
      fsdp.publish();
    }
    const auto report = fsdp.report();
    std::int64_t sent = 0;
    std::int64_t again = 0;
    std::int64_t kept = 0;
    for (std::size_t u = 0; u < units.units.size(); ++u) {
      const auto gathered_again = report.by_unit[u].gathers - kSteps;
      again += gathered_again;
      for (const auto& flat : units.units[u].flats) {
        const int first = world.rank() % kGroup * (kRanks / kGroup);
        const auto shard = flat.layout.shard(world.rank()).numel() * 4;
        const auto part = (flat.layout.shard(first + 1).end -
                           flat.layout.shard(first).begin) *
            4;
        sent += kSteps * shard * (kRanks - 1) +
            gathered_again * part * (kGroup - 1);
        kept += part;
      }
    }
    EXPECT_GT(again, 0);
    EXPECT_EQ(report.gather_sent_bytes, sent);
    auto plain = small_gpt({.tied = false});
    options.secondary_ranks = 0;
    auto without = fully_shard(*plain, world, options);
    EXPECT_EQ(report.shard_bytes, without.report().shard_bytes + kept);
  }));
}

// A rank that leaves the plan, or has no use for a unit, assists.
TEST(SecondaryShardsOfRanks, B3RanksWhoseBackwardsDifferTrainAsOneProcess) {
  expect_all_ok(run_ranks(4, [](World world) {
    const Pass<Chain> pass = [](Chain& chain, int batch, int rank) {
      auto x = integer_rows(batch, rank, 6);
      auto loss = torch::zeros({});
      for (std::size_t i = 0; i < 4; ++i) {
        auto y = chain->layer(i).forward(x);
        y = (static_cast<int>(i) + rank + batch) % 3 == 0 ? y.detach() : y;
        loss = loss + y.sum();
        x = y.clamp(-2, 2);
      }
      return loss;
    };
    RankParity options;
    options.steps = 4;
    options.shard = over_messages({.secondary_ranks = 2});
    expect_rank_parity<Chain>(world, [] { return Chain(4, 6); }, pass, options);
  }));
}

std::string refusal_of_groups(
    const World& world, const FullyShardOptions& options, int replicas = 1) {
  Chain model(2, 6);
  const Mesh mesh(world, {.replicate = replicas});
  auto error = error_of([&] { (void)fully_shard(*model, mesh, options); });
  auto fsdp = fully_shard(*model, world);  // The module is as it was.
  model->forward(integer_rows(0, world.rank(), 6)).sum().backward();
  return error;
}

TEST(SecondaryShardsOfRanks, B3GroupsThatAreNoneAreRefusedOnEveryRank) {
  for (const int ranks : {1, 2, 3, 4}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      const int n = world.size();
      const auto refusal = [&](int group, int replicas = 1) {
        return refusal_of_groups(
            world, over_messages({.secondary_ranks = group}), replicas);
      };
      const auto expected = n == 1 ? "expected 0, which is none"
          : n == 4                 ? "expected one of 2, 4, or 0: none"
                                   : str("expected one of ", n, ", or 0: none");
      for (const int group : {-1, 1, n + 1, 2 * n + 2}) {
        EXPECT_THAT(
            refusal(group),
            AllOf(
                HasSubstr(str("options.secondary_ranks is ", group)),
                HasSubstr(str(
                    "no equal groups of the ", n, n == 1 ? " rank" : " ranks")),
                HasSubstr(expected)));
      }
      if (n == 4) {  // The shard axis counts.
        EXPECT_THAT(refusal(4, 2), HasSubstr("expected one of 2, or 0"));
      }
      if (n == 1) {
        return;
      }
      for (const auto strategy : {Strategy::kShardGradOp, Strategy::kNoShard}) {
        EXPECT_THAT(
            refusal_of_groups(
                world,
                over_messages({.strategy = strategy, .secondary_ranks = n})),
            HasSubstr("expected Strategy::kFullShard"));
      }
      EXPECT_THAT(
          refusal_of_groups(
              world,
              {.secondary_ranks = n, .exchange = ExchangeKind::kHierarchical}),
          AllOf(
              HasSubstr("Strategy::kShardGradOp"),
              HasSubstr("ExchangeKind::kCollective")));
      EXPECT_THAT(
          refusal_of_groups(
              world,
              over_messages({.secondary_ranks = world.rank() == 1 ? n : 0})),
          AllOf(
              HasSubstr("rank 0 has hook none, gather_hook none, "
                        "secondary_ranks 0"),
              HasSubstr(
                  str("rank 1 hook none, gather_hook none, "
                      "secondary_ranks ",
                      n))));
    }));
  }
}

}  // namespace
}  // namespace sherd::test
