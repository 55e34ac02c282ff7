// SPDX-License-Identifier: Apache-2.0
//
// CPU offload: shards, their gradients and the optimizer's state on the host of a device, which only
// computes. The numbers are those of training on the CPU.
#include <mutex>
#include <optional>
#include <gmock/gmock.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/sgd.h>
#include "device/hybrid_recipes.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

FullyShardOptions offloaded_layers() {
  auto options = layers_by_messages();
  options.cpu_offload = true;
  return options;
}

struct OffloadRecipe {
  const char* name = "";
  FullyShardOptions options = offloaded_layers();
  bool micro_batches = false;  // Two a step, each of them reduced.
  std::optional<double> max_norm = std::nullopt;
  std::function<CommHookPtr()> make_hook = nullptr;  // One for each rank.
  // What other recipes change is there on two ranks as on four.
  std::vector<int> ranks = {1, 2};
};

std::vector<OffloadRecipe> offload_recipes() {
  std::vector<OffloadRecipe> all;
  all.push_back({.name = "full_shard", .ranks = {1, 2, 4}});
  all.push_back({.name = "shard_grad_op"});
  all.back().options.strategy = Strategy::kShardGradOp;
  all.push_back({.name = "mixed precision"});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.reduce_dtype = torch::kFloat;
  all.push_back({.name = "narrow gradients"});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.keep_low_precision_grads = true;
  all.push_back({.name = "micro-batches", .micro_batches = true});
  all.push_back({.name = "clipping", .max_norm = 0.5});
  all.push_back({.name = "two ahead"});
  all.back().options.prefetch_visits = 2;
  all.push_back({.name = "hook"});
  all.back().make_hook = [] { return compress(torch::kBFloat16); };
  return all;
}

// Losses, norms and parameters.
Values trained_offloaded(
    const World& world, c10::Device device, const OffloadRecipe& recipe) {
  auto model = mlp_on(device);
  auto options = recipe.options;
  options.hook = recipe.make_hook ? recipe.make_hook() : nullptr;
  auto fsdp = fully_shard(*model, world, options);
  Values values;
  for (int step = 0; step < 4; ++step) {
    for (int micro = 0; micro <= (recipe.micro_batches ? 1 : 0); ++micro) {
      auto loss =
          loss_of(model, batch_on(device, 2 * step + micro, world.rank()));
      loss.backward();
      values.push_back(loss.detach().cpu());
    }
    if (recipe.max_norm) {
      values.push_back(value_of(fsdp.clip_grad_norm(*recipe.max_norm)));
    }
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_TRUE(slice.is_cpu());
      EXPECT_TRUE(!slice.grad().defined() || slice.grad().is_cpu());
    }
    descend_by_hand(fsdp);
  }
  const auto more = whole_parameters_of(fsdp, *model);
  values.insert(values.end(), more.begin(), more.end());
  return values;
}

TEST(DeviceCpuOffload, T05TrainsToTheBitsOfTheCpu) {
  for (const auto& recipe : offload_recipes()) {
    for (const int ranks : recipe.ranks) {
      SCOPED_TRACE(::testing::Message() << recipe.name << " on " << ranks);
      expect_as_on_the_cpu(ranks, [&](const World& world, c10::Device device) {
        return trained_offloaded(world, device, recipe);
      });
    }
  }
}

TEST(DeviceCpuOffload, TrainsWithAdamWAndAScalerAsOnTheCpu) {
  const auto body = [](const World& world, c10::Device device) {
    auto model = mlp_on(device);
    auto options = offloaded_layers();
    options.mixed_precision.param_dtype = torch::kHalf;
    auto fsdp = fully_shard(*model, world, options);
    AdamW adamw(fsdp.named_parameters(), {.learning_rate = 0.05});
    GradScaler scaler(fsdp.named_parameters(), {.init_scale = 1024});
    for (int step = 0; step < 4; ++step) {
      const auto loss = loss_of(model, batch_on(device, step, world.rank()));
      scaler.scale(loss).backward();
      scaler.step(adamw);
      scaler.update();
      adamw.zero_grad();
    }
    return whole_parameters_of(fsdp, *model);
  };
  expect_as_on_the_cpu(2, body, 1e-4);
}

// With one rank on the shard axis nothing is cut, so that Muon needs no other rank.
TEST(DeviceCpuOffload, MuonUpdatesWholeMatricesAsOnTheCpu) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    expect_as_on_the_cpu(ranks, [&](const World& world, c10::Device device) {
      auto model = mlp_on(device);
      auto fsdp = fully_shard(
          *model, Mesh(world, {.replicate = ranks}), offloaded_layers());
      auto parts = split(fsdp.named_parameters(), {"*.weight"});
      Muon muon(std::move(parts.matching), {.learning_rate = 0.02});
      Sgd sgd(std::move(parts.rest), {.learning_rate = 0.02});
      for (int step = 0; step < 3; ++step) {
        loss_of(model, batch_on(device, step, world.rank())).backward();
        muon.step();
        sgd.step();
        muon.zero_grad();
        sgd.zero_grad();
      }
      return whole_parameters_of(fsdp, *model);
    });
  }
}

TEST(DeviceCpuOffload, MuonOnShardsIsRefusedByName) {
  run_device_ranks(2, [](const DeviceRank& self) {
    auto model = mlp_on(self.device);
    auto fsdp = fully_shard(*model, self.world, offloaded_layers());
    auto parts = split(fsdp.named_parameters(), {"*.weight"});
    EXPECT_THAT(
        error_of([&] { const Muon muon(std::move(parts.matching)); }),
        HasSubstr("cpu_offload"));
  });
}

// Also to the bits of a device without offload.
void expect_replicas_as_elsewhere(
    int ranks, const HybridRecipe& plain, int replicas) {
  SCOPED_TRACE(::testing::Message() << plain.name << " on " << ranks);
  auto recipe = plain;
  recipe.options.cpu_offload = true;
  const auto offloaded =
      values_by_rank(ranks, true, hybrid_training(recipe, replicas));
  expect_equal_values(
      offloaded,
      values_by_rank(ranks, false, hybrid_training(recipe, replicas)));
  expect_equal_values(
      offloaded, values_by_rank(ranks, true, hybrid_training(plain, replicas)));
}

TEST(DeviceCpuOffload, T05ReplicasThatShardTrainToTheBitsOfTheCpu) {
  for (const auto& recipe : hybrid_recipes()) {
    expect_replicas_as_elsewhere(4, recipe, 2);
  }
}

TEST(DeviceCpuOffload, T05RanksThatAreReplicasTrainToTheBitsOfTheCpu) {
  for (const auto& recipe : hybrid_recipes()) {
    if (recipe.partial_backwards == 0 && recipe.options.secondary_ranks == 0) {
      expect_replicas_as_elsewhere(2, recipe, 2);
      expect_replicas_as_elsewhere(4, recipe, 4);
    }
  }
}

TEST(DeviceCpuOffload, TheHostHasTheSumOfAllReplicas) {
  run_device_ranks(4, [](const DeviceRank& self) {
    auto model = mlp_on(self.device);
    auto options = offloaded_layers();
    auto fsdp =
        fully_shard(*model, Mesh(self.world, {.replicate = 2}), options);
    auto alone = mlp_on(c10::kCPU);
    for (int rank = 0; rank < 4; ++rank) {
      (loss_of(alone, batch_on(c10::kCPU, 0, rank)) / 4).backward();
    }
    loss_of(model, batch_on(self.device, 0, self.world.rank())).backward();
    const auto whole = fsdp.summon_full_parameters(
        {.read_only = true, .with_gradients = true});
    for (const auto& item : alone->named_parameters()) {
      const auto& expected = item.value().grad();
      EXPECT_EQ(whole.gradient(item.key()).defined(), expected.defined());
      if (expected.defined()) {
        EXPECT_TRUE(torch::allclose(whole.gradient(item.key()).cpu(), expected))
            << item.key();
      }
    }
    for (const auto& slice : fsdp.parameters()) {
      EXPECT_TRUE(slice.is_cpu());
      EXPECT_TRUE(!slice.grad().defined() || slice.grad().is_cpu());
    }
  });
}

// A step whose gradients the host reads at once, and a publish and an evaluation after which it writes
// shards at once. Returns what is wrong; empty: nothing.
std::string hasty_step(
    const DeviceRank& self, int replicas, OptimizerAxes axes) {
  std::string wrong;
  auto model = mlp_on(self.device);
  auto options = offloaded_layers();
  options.optimizer_axes = axes;
  auto fsdp =
      fully_shard(*model, Mesh(self.world, {.replicate = replicas}), options);
  const auto batch = batch_on(self.device, 0, 0);
  loss_of(model, batch).backward();
  for (const auto& slice : fsdp.parameters()) {
    if (slice.grad().defined() && slice.grad().isnan().any().item<bool>()) {
      wrong += "a gradient is not there yet; ";
    }
  }
  descend_by_hand(fsdp);
  const torch::NoGradGuard no_grad;
  const auto write_shards = [&] {
    for (const auto& slice : fsdp.parameters()) {
      slice.add_(1);
    }
    fsdp.publish();
  };
  write_shards();  // With owners on both axes a publish has read them.
  (void)loss_of(model, batch);
  write_shards();
  synchronise_with_host(self.device, "the end");
  return wrong;
}

std::string wrong_where_the_host_does_not_wait(
    int replicas, OptimizerAxes axes) {
  std::string wrong;
  std::mutex mu;
  run_device_ranks(
      replicas,
      [&](const DeviceRank& self) {
        std::string mine;
        try {
          mine = hasty_step(self, replicas, axes);
        } catch (const std::exception& error) {
          mine = error.what();
        }
        const std::lock_guard lock(mu);
        wrong += mine;
        for (const auto& fault : take_faults(self.device)) {
          wrong += fault;
        }
      },
      {.disorderly = true});
  return wrong;
}

void expect_the_host_waits(
    int replicas, OptimizerAxes axes = OptimizerAxes::kShard) {
  const auto device = checking_device();
  int count = 0;
  {
    const StreamWaits waits(device);
    ASSERT_EQ(wrong_where_the_host_does_not_wait(replicas, axes), "");
    count = waits.of_host();
  }
  std::string without_one;
  for (int wait = 0; wait < count; ++wait) {
    StreamWaits waits(device);
    waits.leave_out_of_host(wait);
    without_one += wrong_where_the_host_does_not_wait(replicas, axes);
  }
  EXPECT_THAT(
      without_one,
      AllOf(
          HasSubstr("a gradient is not there yet"),
          HasSubstr("[checking device]")));
}

TEST(DeviceCpuOffload, T05TheHostWaitsBeforeItReadsGradientsAndWritesShards) {
  expect_the_host_waits(1);
}

TEST(DeviceCpuOffload, T05TheHostWaitsForSumsAcrossReplicas) {
  expect_the_host_waits(2);
  expect_the_host_waits(2, OptimizerAxes::kBoth);
}

void expect_offload_refused(
    const std::function<void(FullyShardOptions&)>& change,
    const std::string& text) {
  SCOPED_TRACE(text);
  for (const bool on_device : {true, false}) {
    run_device_ranks(
        2,
        [&](const DeviceRank& self) {
          auto options = offloaded_layers();
          change(options);
          EXPECT_THAT(
              error_of([&] {
                (void)fully_shard(
                    *mlp_on(on_device ? self.device : c10::kCPU), self.world,
                    options);
              }),
              AllOf(HasSubstr("options.cpu_offload"), HasSubstr(text)));
        },
        {.disorderly = true});
  }
}

TEST(DeviceCpuOffload, WhatItDoesNotGoWithIsRefusedByName) {
  expect_offload_refused(
      [](auto& options) { options.strategy = Strategy::kNoShard; },
      "Strategy::kNoShard");
  expect_offload_refused(
      [](auto& options) { options.gather_hook = quantise_gathers(); },
      "options.gather_hook");
}

}  // namespace
}  // namespace sherd::test
