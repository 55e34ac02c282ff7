// SPDX-License-Identifier: Apache-2.0
//
// Replicas that shard, on devices: the bits of the same mesh on the CPU, and errors that all ranks
// hear of.
#include <gmock/gmock.h>
#include "device/hybrid_recipes.h"
#include "support/error_of.h"

namespace sherd::test {
namespace {

TEST(DeviceHybrid, T30TrainsToTheBitsOfTheCpu) {
  for (const auto& recipe : hybrid_recipes()) {
    SCOPED_TRACE(recipe.name);
    expect_as_on_the_cpu(4, hybrid_training(recipe, 2));
  }
}

// A rank alone on the shard axis shards nothing but its optimizer's state.
TEST(DeviceHybrid, T30RanksThatAreReplicasByThemselvesTrainToTheBitsOfTheCpu) {
  for (const auto& recipe : hybrid_recipes()) {
    if (recipe.partial_backwards == 0 && recipe.options.secondary_ranks == 0) {
      SCOPED_TRACE(recipe.name);
      expect_as_on_the_cpu(2, hybrid_training(recipe, 2));
    }
  }
}

TEST(DeviceHybrid, DeterministicSumsHaveTheBitsOfTheCpu) {
  const DeterministicAlgorithms on;
  for (const auto& recipe : hybrid_recipes()) {
    if (!recipe.make_hook && recipe.options.secondary_ranks == 0) {
      SCOPED_TRACE(recipe.name);
      expect_as_on_the_cpu(4, hybrid_training(recipe, 2));
    }
  }
}

TEST(DeviceHybrid, APlannedStepMakesTheHostNeitherWaitNorAllocate) {
  for (const auto& recipe : hybrid_recipes()) {
    if (recipe.max_norm) {
      continue;  // Its norm is a number for the host.
    }
    SCOPED_TRACE(recipe.name);
    run_device_ranks(4, [&](const DeviceRank& self) {
      HybridTrainer trainer(
          Mesh(self.world, {.replicate = 2}), self.device, recipe);
      for (int step = 0; step < 3; ++step) {
        trainer.step(step);
      }
      trainer.fsdp.synchronize();
      const auto before = host_synchronisations(self.device);
      torch::Tensor loss;
      {
        const CaptureScope capture(self.device);
        loss = trainer.step(3);
      }
      EXPECT_EQ(host_synchronisations(self.device), before);
      trainer.fsdp.synchronize();
    });
  }
}

void expect_failure_on_all(const HybridRecipe& recipe) {
  const auto train = [&](bool with_failure) -> ParityBody {
    return [=, &recipe](const World& world, c10::Device device) {
      HybridTrainer trainer(Mesh(world, {.replicate = 2}), device, recipe);
      trainer.step(0);
      if (with_failure) {
        const auto loss =
            loss_of(trainer.model, batch_on(device, 1, world.rank()));
        if (world.rank() == 3) {
          loss.register_hook([](const torch::Tensor&) -> torch::Tensor {
            throw std::runtime_error("no gradient today");
          });
        }
        EXPECT_THAT(
            error_of([&] { loss.backward(); }),
            ::testing::HasSubstr("no gradient today"));
      }
      trainer.step(1);
      return whole_parameters_of(trainer.fsdp, *trainer.model);
    };
  };
  expect_equal_values(
      values_by_rank(4, true, train(true)),
      values_by_rank(4, true, train(false)));
}

TEST(DeviceHybrid, ABackwardThatFailsOnOneRankFailsOnAllAndTrainingGoesOn) {
  HybridRecipe recipe{.name = "full_shard"};
  expect_failure_on_all(recipe);
  recipe.options.cpu_offload = true;
  expect_failure_on_all(recipe);
  recipe.options.optimizer_axes = OptimizerAxes::kBoth;
  expect_failure_on_all(recipe);
}

// No rank waits for it without a limit, neither within the backward nor at its end.
void expect_errors_without_a_replica(const HybridRecipe& recipe) {
  run_device_ranks(
      4,
      [&](const DeviceRank& self) {
        HybridTrainer trainer(
            Mesh(self.world, {.replicate = 2}), self.device, recipe);
        trainer.step(0);
        if (self.world.rank() < 2) {
          EXPECT_NE(error_of([&] { trainer.step(1); }), "no error");
        }
      },
      {.deadline = std::chrono::seconds(2), .disorderly = true});
}

TEST(DeviceHybrid, ALostReplicaIsAnErrorOfTheOthers) {
  HybridRecipe recipe{.name = "full_shard"};
  expect_errors_without_a_replica(recipe);
  recipe.options.cpu_offload = true;
  expect_errors_without_a_replica(recipe);
  recipe.options.optimizer_axes = OptimizerAxes::kBoth;
  expect_errors_without_a_replica(recipe);
}

}  // namespace
}  // namespace sherd::test
