// SPDX-License-Identifier: Apache-2.0
//
// FullyShardOptions::memory_from_backend: what collectives read and write lies in memory that their
// backend has allocated, and the numbers stay the same.
#include <gmock/gmock.h>
#include "device/hybrid_recipes.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

using ::testing::HasSubstr;

FullyShardOptions layers_in_backend_memory() {
  auto options = layers_by_messages();
  options.memory_from_backend = true;
  return options;
}

struct BackendMemoryRecipe {
  const char* name = "";
  FullyShardOptions options = layers_in_backend_memory();
  int ranks = 2;
  int replicas = 1;
};

std::vector<BackendMemoryRecipe> backend_memory_recipes() {
  std::vector<BackendMemoryRecipe> all;
  all.push_back({.name = "full_shard"});
  all.push_back({.name = "full_shard on four", .ranks = 4});
  all.push_back({.name = "shard_grad_op"});
  all.back().options.strategy = Strategy::kShardGradOp;
  all.push_back({.name = "no_shard"});
  all.back().options.strategy = Strategy::kNoShard;
  all.push_back({.name = "mixed precision"});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.reduce_dtype = torch::kFloat;
  all.push_back({.name = "narrow sums"});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.push_back({.name = "two replicas", .ranks = 4, .replicas = 2});
  all.push_back({.name = "both axes", .ranks = 4, .replicas = 2});
  all.back().options.optimizer_axes = OptimizerAxes::kBoth;
  all.push_back({.name = "one rank", .ranks = 1});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  return all;
}

// Two micro-batches a step: the second one adds to what the first one left.
Values trained(
    const World& world,
    c10::Device device,
    const BackendMemoryRecipe& recipe,
    bool* from_backend = nullptr) {
  auto model = mlp_on(device);
  auto fsdp = fully_shard(
      *model, Mesh(world, {.replicate = recipe.replicas}), recipe.options);
  Values values;
  for (int batch = 0; batch < 8; ++batch) {
    auto loss = loss_of(model, batch_on(device, batch, world.rank()));
    loss.backward();
    values.push_back(loss.detach().cpu());
    if (batch % 2 == 1) {
      descend_by_hand(fsdp);
    }
  }
  if (from_backend != nullptr) {
    *from_backend = fsdp.report().memory_from_backend;
  }
  return values;
}

TEST(DeviceBackendMemory, B18HoldsAllThatCollectivesReadAndWrite) {
  for (const auto& recipe : backend_memory_recipes()) {
    SCOPED_TRACE(recipe.name);
    auto plain = recipe;
    plain.options.memory_from_backend = false;
    const auto expected = values_by_rank(
        recipe.ranks, true, [&](const World& world, c10::Device device) {
          return trained(world, device, plain);
        });
    std::vector<Values> found(expected.size());
    run_device_ranks(
        recipe.ranks,
        [&](const DeviceRank& self) {
          bool from_backend = false;
          found[static_cast<std::size_t>(self.world.rank())] =
              trained(self.world, self.device, recipe, &from_backend);
          EXPECT_TRUE(from_backend);
          EXPECT_EQ(self.network.started_elsewhere(self.world.rank()), 0);
        },
        {.offers_memory = true});
    expect_equal_values(found, expected);
  }
}

TEST(DeviceBackendMemory, B18ABackendWithoutAnyLeavesItToLibTorch) {
  run_device_ranks(2, [](const DeviceRank& self) {
    bool from_backend = true;
    (void)trained(self.world, self.device, {}, &from_backend);
    EXPECT_FALSE(from_backend);
  });
}

TEST(DeviceBackendMemory, B18IsOffUnlessAskedForAndOnTheCpu) {
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        bool from_backend = true;
        (void)trained(
            self.world, self.device, {.options = layers_by_messages()},
            &from_backend);
        EXPECT_FALSE(from_backend);
        (void)trained(self.world, c10::kCPU, {}, &from_backend);
        EXPECT_FALSE(from_backend);
      },
      {.offers_memory = true});
}

TEST(DeviceBackendMemory, B18RanksThatDifferAreToldOnEveryRank) {
  run_device_ranks(
      2,
      [](const DeviceRank& self) {
        auto model = mlp_on(self.device);
        auto options = layers_by_messages();
        options.memory_from_backend = self.world.rank() == 1;
        EXPECT_THAT(
            error_of([&] { (void)fully_shard(*model, self.world, options); }),
            HasSubstr("memory of their backend"));
      },
      {.disorderly = true, .offers_memory = true});
}

}  // namespace
}  // namespace sherd::test
