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
#include "train/config.h"
#include "train/trainer.h"

namespace sherd::tools {

class RunCheckpoints {
 public:
  // Collective; the trainer must outlive it. Throws Error as CheckpointSaver does.
  RunCheckpoints(Trainer& trainer, const std::string& run_path);

  // Collective. Goes on from the newest checkpoint; returns its step, or 0 where
  // there is none. Throws Error as load_checkpoint() does, and when the data
  // are others.
  std::int64_t resume();

  // Collective, between two steps.
  void save(std::int64_t step);
  void wait() { saver_.wait(); }

 private:
  Trainer& trainer_;
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
