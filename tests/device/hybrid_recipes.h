// SPDX-License-Identifier: Apache-2.0
//
// Ways to train replicas that shard on devices, and a model that takes steps in one of them.
#pragma once

#include <functional>
#include <optional>
#include <vector>
#include "device/device_parity.h"

namespace sherd::test {

struct HybridRecipe {
  const char* name = "";
  FullyShardOptions options = layers_by_messages();
  // Gradients of this many backwards are summed within a replica before they cross.
  int partial_backwards = 0;
  // `.grad()` has what an earlier backward brought.
  bool accumulates = false;
  std::optional<double> max_norm = std::nullopt;
  std::function<CommHookPtr()> make_hook = nullptr;  // One for each rank.

  FullyShardOptions options_of_rank() const {
    auto mine = options;
    mine.hook = make_hook ? make_hook() : nullptr;
    return mine;
  }
};

inline std::vector<HybridRecipe> hybrid_recipes() {
  std::vector<HybridRecipe> all;
  all.push_back({.name = "full_shard"});
  all.push_back({.name = "shard_grad_op"});
  all.back().options.strategy = Strategy::kShardGradOp;
  all.push_back({.name = "mixed precision"});
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.reduce_dtype = torch::kFloat;
  all.push_back({.name = "both axes", .max_norm = 0.5});
  all.back().options.optimizer_axes = OptimizerAxes::kBoth;
  all.push_back({.name = "both axes in bf16"});
  all.back().options.optimizer_axes = OptimizerAxes::kBoth;
  all.back().options.mixed_precision.param_dtype = torch::kBFloat16;
  all.back().options.mixed_precision.reduce_dtype = torch::kFloat;
  all.push_back({.name = "secondary shards"});
  all.back().options.secondary_ranks = 2;
  all.push_back({.name = "partial sums", .partial_backwards = 2});
  all.push_back({.name = "accumulation", .accumulates = true});
  all.push_back({.name = "PowerSGD", .accumulates = true});
  all.back().make_hook = [] { return power_sgd({.start_step = 1}); };
  all.push_back({.name = "bf16 hook, partial sums", .partial_backwards = 2});
  all.back().make_hook = [] { return compress(torch::kBFloat16); };
  all.push_back({.name = "bf16 hook over both axes"});
  all.back().options.optimizer_axes = OptimizerAxes::kBoth;
  all.back().make_hook = [] { return compress(torch::kBFloat16); };
  return all;
}

class HybridTrainer {
 public:
  HybridTrainer(
      const Mesh& mesh, c10::Device device, const HybridRecipe& recipe)
      : recipe_(recipe),
        model(mlp_on(device)),
        fsdp(fully_shard(*model, mesh, recipe.options_of_rank())) {
    for (int batch = 0; batch < 4; ++batch) {
      batches_.push_back(batch_on(device, batch, mesh.world().rank()));
    }
  }

  torch::Tensor step(int number) {
    {
      const auto partial = fsdp.no_sync({.axis = NoSyncAxis::kReplicate});
      for (int i = 0; i < recipe_.partial_backwards; ++i) {
        (void)backward(number + i + 1);
      }
    }
    if (recipe_.accumulates) {
      (void)backward(number + 2);
    }
    const auto loss = backward(number);
    if (recipe_.max_norm) {
      norms.push_back(fsdp.clip_grad_norm(*recipe_.max_norm));
    }
    descend_by_hand(fsdp);
    return loss;
  }

 private:
  torch::Tensor backward(int number) {
    const auto loss =
        loss_of(model, batches_[static_cast<std::size_t>(number % 4)]);
    loss.backward();
    return loss.detach();
  }

  const HybridRecipe& recipe_;
  std::vector<torch::Tensor> batches_;

 public:
  DeviceMlp model;
  FullyShardedDataParallel fsdp;
  std::vector<double> norms;
};

inline ParityBody hybrid_training(const HybridRecipe& recipe, int replicas) {
  return [&recipe, replicas](const World& world, c10::Device device) {
    HybridTrainer trainer(Mesh(world, {.replicate = replicas}), device, recipe);
    Values values;
    for (int step = 0; step < 3; ++step) {
      values.push_back(trainer.step(step).cpu());
    }
    for (const double norm : trainer.norms) {
      values.push_back(value_of(norm));
    }
    const auto whole = whole_parameters_of(trainer.fsdp, *trainer.model);
    values.insert(values.end(), whole.begin(), whole.end());
    return values;
  };
}

}  // namespace sherd::test
