// SPDX-License-Identifier: Apache-2.0
//
// RunCheckpoints saves a run where it is, and brings it back there: the model, its
// optimizers, the place in the data. In the run's folder "checkpoints". Also
// counts the signals that ask for a checkpoint. One of a process. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/data/batches.h>
#include <sherd/world/world.h>
#include "train/config.h"
#include "train/training_engine.h"

namespace sherd::tools {

class RunCheckpoints {
 public:
  // Collective; all must outlive it. Throws Error as CheckpointSaver does.
  RunCheckpoints(
      const World& world,
      const TrainConfig& config,
      const std::string& run_path,
      const torch::nn::Module& model,
      TrainingEngine& engine,
      data::GlobalBatches& batches,
      std::int64_t vocabulary);

  // Collective. Goes on from the newest checkpoint; returns its step, or 0 where
  // there is none. Throws Error as load_checkpoint() does, and when the data
  // are others.
  std::int64_t resume();

  // Collective, between two steps.
  void save(std::int64_t step);
  void wait() { saver_.wait(); }

 private:
  const World& world_;
  data::GlobalBatches& batches_;
  const std::map<std::string, std::string> about_;  // The model.
  CheckpointState state_;
  CheckpointSaver saver_;
};

// The values of a checkpoint that `sherd checkpoint export` needs.
std::map<std::string, std::string> model_metadata(
    TrainConfig config, std::int64_t vocabulary);

// What signals ask for, so far and on this rank: 1 for a checkpoint (SIGUSR1), 2
// for one and the end (SIGTERM), 0 for nothing. Asking for it clears a 1.
void install_signal_handlers();
int take_signal_request();

}  // namespace sherd::tools
