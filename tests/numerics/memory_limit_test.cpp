// SPDX-License-Identifier: Apache-2.0
//
// FullyShardOptions::memory_bytes: the process stays within the limit as the kernel counts it, the
// numbers keep every bit, and a limit that cannot be kept is an error on every rank.
#include "support/error_of.h"
#include "support/ranks.h"

#include <malloc.h>
#include <algorithm>
#include <fstream>
#include <vector>
#include <gmock/gmock.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/gpt.h>
#include <sherd/optim/adamw.h>
#include <torch/torch.h>
#include "base/clock.h"
#include "base/host.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMuch = std::int64_t{1} << 40;
constexpr std::int64_t kMemoryMiB = std::int64_t{1} << 20;
constexpr int kLayers = 6;
constexpr int kSteps = 8;  // Three of them within the limit.

// A layer keeps 4.5 MB of activations for a batch, of which 0.25 MB are its input.
models::Gpt layered_gpt() {
  return models::Gpt(models::GptConfig{
      .layers = kLayers,
      .width = 128,
      .heads = 4,
      .sequence = 128,
      .vocabulary = 64,
      .dropout = 0.1,
      .seed = 3});
}

torch::Tensor layered_loss(models::Gpt& model, int step, int rank) {
  torch::manual_seed(100 * step + rank);
  const auto ids = torch::randint(0, 64, {4, 129}, torch::kLong);
  return model->loss(
      ids.slice(1, 0, 128).contiguous(), ids.slice(1, 1, 129).contiguous());
}

struct LimitedRun {
  std::vector<double> losses;
  ShardReport report;
  std::int64_t peak_bytes = 0;  // Of the process.
};

// 0: without a limit.
LimitedRun train_within(
    const World& world, std::int64_t limit, FullyShardOptions options) {
  ::malloc_trim(0);
  std::ofstream("/proc/self/clear_refs") << "5" << std::flush;
  auto model = layered_gpt();
  if (limit > 0) {
    options.memory_bytes = limit;
    options.checkpointing.emplace(*model);
    model->run_layers_with(*options.checkpointing);
  }
  auto fsdp = fully_shard(*model, world, options);
  AdamW adamw(fsdp.named_parameters(), {.learning_rate = 1e-2});
  LimitedRun run;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = layered_loss(model, step, world.rank());
    loss.backward();
    adamw.step();
    adamw.zero_grad();
    run.losses.push_back(loss.item<double>());
  }
  run.report = fsdp.report();
  run.peak_bytes = resident_bytes_peak();
  return run;
}

void expect_limit_kept(const World& world, const FullyShardOptions& options) {
  const auto plain = train_within(world, 0, options);
  const auto ample = train_within(world, kMuch, options);
  ASSERT_TRUE(ample.report.memory.decided);
  EXPECT_EQ(ample.report.memory.regions, kLayers);
  EXPECT_EQ(ample.report.memory.recomputed, 0);
  const auto& choices = ample.report.memory.choices;
  ASSERT_GE(choices.size(), 2U);
  EXPECT_GE(choices.front().recomputed, kLayers - 1);
  EXPECT_EQ(choices.back().recomputed, 0);

  const auto middle =
      (choices.front().limit_bytes + choices.back().limit_bytes) / 2;
  const auto limited = train_within(world, middle, options);
  const auto& memory = limited.report.memory;
  EXPECT_TRUE(memory.decided);
  EXPECT_GT(memory.recomputed, 0);
  EXPECT_LT(memory.recomputed, kLayers);
  EXPECT_EQ(memory.step_s, memory.lower_bound_s);
  EXPECT_LE(memory.peak_bytes, middle);
  EXPECT_LE(limited.peak_bytes, middle) << suggest(ample.report);
  EXPECT_EQ(plain.losses, ample.losses);
  EXPECT_EQ(plain.losses, limited.losses);
}

TEST(MemoryLimit, IsKeptByOneRankWithEqualBits) {
  expect_all_ok(
      run_ranks(1, [](World world) { expect_limit_kept(world, {}); }));
}

TEST(MemoryLimit, IsKeptOverMessagesWithEqualBits) {
  expect_all_ok(run_ranks(2, [](World world) {
    expect_limit_kept(world, {.exchange = ExchangeKind::kCollective});
  }));
}

TEST(MemoryLimit, IsKeptBesideSecondaryShardsWithEqualBits) {
  expect_all_ok(run_ranks(2, [](World world) {
    expect_limit_kept(
        world, {.secondary_ranks = 2, .exchange = ExchangeKind::kCollective});
  }));
}

TEST(MemoryLimit, IsKeptInSharedMemoryWithEqualBits) {
  expect_all_ok(run_ranks(2, [](World world) {
    expect_limit_kept(world, {.exchange = ExchangeKind::kSharedMemory});
  }));
}

double first_loss(const Mesh& mesh, const FullyShardOptions& options) {
  auto model = layered_gpt();
  auto fsdp = fully_shard(*model, mesh, options);
  return layered_loss(model, 0, mesh.world().rank()).item<double>();
}

// Ranks compare the limit over the exchange before shards have values.
TEST(MemoryLimit, TheFirstStepHasTheValuesOfTheModel) {
  expect_all_ok(run_ranks(2, [](World world) {
    FullyShardOptions narrow;
    narrow.mixed_precision = {.param_dtype = torch::kBFloat16};
    FullyShardOptions both;
    both.optimizer_axes = OptimizerAxes::kBoth;
    const auto expect_same = [](const Mesh& mesh, FullyShardOptions options) {
      const auto plain = first_loss(mesh, options);
      options.memory_bytes = kMuch;
      EXPECT_EQ(first_loss(mesh, options), plain);
    };
    expect_same(Mesh(world), narrow);
    expect_same(Mesh(world, {.replicate = 2}), both);
  }));
}

TEST(MemoryLimit, ThatCannotBeKeptIsRefusedOnEveryRankWithItsFloor) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto at_once = error_of([&] {
      train_within(world, kMemoryMiB, {.exchange = ExchangeKind::kCollective});
    });
    EXPECT_THAT(at_once, HasSubstr("a memory limit of 1048576 bytes is below"));
    EXPECT_THAT(at_once, HasSubstr("floor"));
    // More than at the start, and less than a step needs.
    double most = 0;
    for (const auto& row :
         world.all_gather({static_cast<double>(resident_bytes())})) {
      most = std::max(most, row[0]);
    }
    const auto after_steps = error_of([&] {
      train_within(
          world, static_cast<std::int64_t>(most) + 10 * kMemoryMiB,
          {.exchange = ExchangeKind::kCollective});
    });
    EXPECT_THAT(after_steps, HasSubstr("is below its floor of"));
  }));
}

// The module is what it was: it computes the same, and can be sharded without the limit.
TEST(MemoryLimit, ThatCannotBeKeptIsRefusedBeforeTheModuleChanges) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      for (const auto exchange :
           {ExchangeKind::kCollective, ExchangeKind::kSharedMemory}) {
        auto model = layered_gpt();
        const auto loss_without_gradients = [&] {
          const torch::NoGradGuard no_grad;
          return layered_loss(model, 0, world.rank()).item<double>();
        };
        const auto before = loss_without_gradients();
        FullyShardOptions options;
        options.exchange = exchange;
        // Less than a process has without its parameters, by far; the same on all ranks.
        const auto resident =
            world.all_gather({static_cast<double>(resident_bytes())})[0][0];
        for (const auto limit :
             {std::int64_t{1}, static_cast<std::int64_t>(resident / 2)}) {
          options.memory_bytes = limit;
          EXPECT_THAT(
              error_of([&] { (void)fully_shard(*model, world, options); }),
              HasSubstr("bytes is below its floor"));
          EXPECT_EQ(loss_without_gradients(), before);
          for (const auto& parameter : model->parameters()) {
            EXPECT_TRUE(parameter.requires_grad());
            EXPECT_EQ(parameter.nbytes(), parameter.storage().nbytes());
          }
        }
        options.memory_bytes.reset();
        auto fsdp = fully_shard(*model, world, options);
        EXPECT_EQ(loss_without_gradients(), before);
        layered_loss(model, 0, world.rank()).backward();
      }
    }));
  }
}

TEST(MemoryLimit, ThatDiffersBetweenRanksIsRefusedOnEachOfThem) {
  expect_all_ok(run_ranks(2, [](World world) {
    const auto error = error_of([&] {
      train_within(
          world, kMuch + world.rank(), {.exchange = ExchangeKind::kCollective});
    });
    EXPECT_THAT(error, HasSubstr("memory_bytes"));
  }));
}

TEST(MemoryLimit, DecidesTheBudgetSoThatNoOtherIsTaken) {
  expect_all_ok(run_ranks(1, [](World world) {
    auto model = layered_gpt();
    const auto error = error_of([&] {
      (void)fully_shard(
          *model, world, {.budget_bytes = kMuch, .memory_bytes = kMuch});
    });
    EXPECT_THAT(error, HasSubstr("expected neither budget_bytes nor"));
  }));
}

// The first step's time too, although no step has ended before it.
TEST(MemoryLimit, ReportsWhatEachStepTook) {
  for (const int ranks : {1, 2}) {
    expect_all_ok(run_ranks(ranks, [](World world) {
      const auto began = SteadyClock().now();
      auto model = layered_gpt();
      auto fsdp = fully_shard(*model, world, {.memory_bytes = kMuch});
      AdamW adamw(fsdp.named_parameters());
      for (int step = 0; step < 2; ++step) {
        layered_loss(model, step, world.rank()).backward();
        adamw.step();
        adamw.zero_grad();
        const auto took_s = fsdp.report().memory.last_step_s;
        EXPECT_GT(took_s, 0.0) << "step " << step;
        EXPECT_LE(took_s, seconds(SteadyClock().now() - began))
            << "step " << step;
      }
    }));
  }
}

TEST(MemoryLimit, HasNothingToSuggestBeforeAMeasurement) {
  EXPECT_THAT(suggest(ShardReport()), HasSubstr("nothing is measured yet"));
}

}  // namespace
}  // namespace sherd::test
