// SPDX-License-Identifier: Apache-2.0
//
// TrainingEngine is everything that `sherd train` does to make a plain model a distributed one, in
// the order in which a program does it: shard or replicate the model, build an optimizer over its
// parameters, and after each backward clip, step and clear. Thread rule: one thread; the model must
// outlive it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/ddp/replicate.h>
#include <sherd/fsdp/fully_shard.h>
#include <sherd/models/language_model.h>
#include <sherd/optim/adamw.h>
#include <sherd/optim/grad_scaler.h>
#include <sherd/optim/muon.h>
#include <sherd/optim/weight_average.h>
#include <sherd/world/world.h>
#include "train/config.h"
#include "train/step_metrics.h"

namespace sherd::tools {

// A number that does not fit into an int exceeds any number of visits, ranks or checkpoints.
inline int int_of(std::int64_t number) {
  return static_cast<int>(
      std::min<std::int64_t>(number, std::numeric_limits<int>::max()));
}

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

  // Held during each backward that is not the step's last. Replicas then sum their gradients with
  // the others' only in the last one; shards sum them each time, since whole gradients would need
  // the memory that sharding saves.
  [[nodiscard]] std::optional<LocalGradientsScope> accumulate();

  // The value from which to run backward: the loss, which --dtype fp16 scales.
  at::Tensor scaled(const at::Tensor& loss) const;

  // Called after backward: clips the gradient, makes one optimizer step at the record's learning
  // rate and clears the gradients. Completes the record with the norm of the whole gradient before
  // clipping and, with --dtype fp16, with the scale and whether the step was skipped. Collective.
  void update(StepMetrics& record);

  // This rank's slices.
  NamedParameters named_parameters() const;
  // Whether all weights of this rank are.
  bool weights_are_finite() const;

  // The comm hook of gradients; null if there is none. Its state has to be saved, too. It connects
  // the ranks on the replicate axis of that mesh.
  CommHook* hook() const { return hook_.get(); }
  const Mesh& hook_mesh() const { return hook_mesh_; }

  // Null unless --dtype is fp16. Its state has to be saved, too.
  const GradScaler* scaler() const { return scaler_ ? &*scaler_ : nullptr; }

  // Without figures if the model is replicated.
  ShardReport report() const;

  // The memory that this rank uses as long as it trains, in bytes.
  struct StateBytes {
    // Shards, or the whole model if it is replicated.
    std::int64_t parameters = 0;
    std::int64_t gradients = 0;
    std::int64_t optimizer = 0;  // Including the average.
  };
  StateBytes state_bytes() const;

  // Called after weights were loaded: the average begins again with them.
  void reset_average();

  // Adds what has to be saved: parameters and the state of optimizers.
  void add_to(CheckpointState& state);

  void close();

 private:
  NamedParameters distribute(
      models::LanguageModel& model,
      const Mesh& mesh,
      const TrainConfig& config);
  double clip();
  void take_step(StepMetrics& record);

  const CommHookPtr hook_;
  const Mesh hook_mesh_;
  // Set if sharded; otherwise ddp_ is.
  std::optional<FullyShardedDataParallel> fsdp_;
  std::optional<DistributedDataParallel> ddp_;
  const SplitParameters parameters_;  // For Muon, and for AdamW.
  std::optional<Muon> muon_;
  AdamW adamw_;
  std::optional<GradScaler> scaler_;
  std::optional<WeightAverage> average_;
  const double max_norm_;
};

}  // namespace sherd::tools
