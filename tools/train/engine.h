// SPDX-License-Identifier: Apache-2.0
//
// Engine is all that `sherd train` does to make a plain model a distributed
// one, in the order in which a program does it: shard the model, build an
// optimizer over the shards, and after each backward clip, step and clear.
// Thread rule: one thread; model must outlive it.
#pragma once

#include <optional>
#include <sherd/comm/world.h>
#include <sherd/models/language_model.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/muon.h>
#include <sherd/shard/fully_shard.h>
#include "train/config.h"

namespace sherd::tools {

// Throws Error unless --replicate divides the number of ranks.
Mesh mesh_of(const World& world, const TrainConfig& config);

class Engine {
 public:
  // Collective. Gives the model its initial values. Throws Error as fully_shard
  // does.
  Engine(
      models::LanguageModel& model,
      const Mesh& mesh,
      const TrainConfig& config);

  // After backward: clips the gradient, takes one optimizer step at this
  // learning rate and clears the gradients. Returns the norm of the whole
  // gradient before clipping. Collective.
  double update(double learning_rate);

  ShardReport report() const { return fsdp_.report(); }
  void close() { fsdp_.close(); }

 private:
  FullyShardedDataParallel fsdp_;
  const SplitParameters parameters_;  // Muon's, and AdamW's.
  std::optional<Muon> muon_;
  AdamW adamw_;
  const double longest_;
};

}  // namespace sherd::tools
