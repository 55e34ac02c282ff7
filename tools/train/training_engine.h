// SPDX-License-Identifier: Apache-2.0
//
// TrainingEngine is all that `sherd train` does to make a plain model a
// distributed one, in the order in which a program does it: shard or replicate
// the model, build an optimizer over its parameters, and after each backward
// clip, step and clear. Thread rule: one thread; model must outlive it.
#pragma once

#include <optional>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/language_model.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/world/world.h>
#include "train/config.h"
#include "train/weight_average.h"

namespace sherd::tools {

// Throws Error unless --replicate divides the number of ranks.
Mesh mesh_of(const World& world, const TrainConfig& config);

class TrainingEngine {
 public:
  // Collective. Gives the model its initial values. Throws Error as fully_shard
  // and replicate do.
  TrainingEngine(
      models::LanguageModel& model,
      const Mesh& mesh,
      const TrainConfig& config);

  // To be held during a backward that is not the step's last. Replicas then sum
  // their gradients with the others' in the last one alone; shards sum them each
  // time, since whole gradients would need the memory that sharding saves.
  [[nodiscard]] std::optional<LocalGradientsScope> accumulate();

  // After backward: clips the gradient, takes one optimizer step at this
  // learning rate and clears the gradients. Returns the norm of the whole
  // gradient before clipping. Collective.
  double update(double learning_rate);

  // This rank's slices.
  NamedParameters named_parameters() const;

  // The hook of replicas; null without one. What it remembers is to be saved,
  // too.
  CommHook* hook() const { return hook_.get(); }

  // After weights were loaded: the average begins again with them.
  void reset_average();

  // What there is to save: parameters and what optimizers remember of them.
  void add_to(CheckpointState& state);

  void close();

 private:
  NamedParameters distribute(
      models::LanguageModel& model,
      const Mesh& mesh,
      const TrainConfig& config);
  double clip();

  const CommHookPtr hook_;
  std::optional<FullyShardedDataParallel> fsdp_;  // Or:
  std::optional<DistributedDataParallel> ddp_;
  const SplitParameters parameters_;  // Muon's, and AdamW's.
  std::optional<Muon> muon_;
  AdamW adamw_;
  std::optional<WeightAverage> average_;
  const double max_norm_;
};

}  // namespace sherd::tools
