// SPDX-License-Identifier: Apache-2.0
//
// RunCheckpoints saves a run where it is, and brings it back there: the model,
// its optimizers, the memory of its hook, the place in the data. In the run's
// folder "checkpoints". Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <sherd/ckpt/checkpoint.h>
#include "train/config.h"
#include "train/trainer.h"

namespace sherd::tools {

class RunCheckpoints {
 public:
  // Collective; the trainer must outlive it. Throws Error as CheckpointSaver
  // does.
  RunCheckpoints(Trainer& trainer, const std::string& run_path);

  // Collective. Goes on from the newest checkpoint that can be read, and returns
  // its step, which is 0 for one that was imported; nothing where there is no
  // checkpoint. Throws Error as load_newest_checkpoint() does, when the data are
  // others, and when another optimizer made it.
  std::optional<std::int64_t> resume();
  // What a user should know about the checkpoint that resume() loaded; or "".
  const std::string& note() const { return note_; }

  // Collective, between two steps. A disk that fails costs this checkpoint and a
  // warning, which may come with the next one.
  void save(std::int64_t step);
  // Collective. Throws Error when the last one failed.
  void wait() { saver_.wait(); }

 private:
  LoadReport load(const std::string& folder);
  void warn_if_disk_fails(const std::function<void()>& action);

  Trainer& trainer_;
  const std::string folder_;
  const std::map<std::string, std::string> about_;  // The model.
  std::string note_;
  CheckpointState state_;
  CheckpointSaver saver_;
};

// Where checkpoints have the state of --dtype fp16.
inline constexpr const char* kScalerSection = "scaler";

// The values of a checkpoint that `sherd checkpoint export` needs.
std::map<std::string, std::string> model_metadata(
    TrainConfig config, std::int64_t vocabulary);

// Collective. Whether the run has a checkpoint, as rank 0 sees it.
bool has_checkpoint(const World& world, const std::string& run_path);

// Says that the checkpoints beside a config file are not those of the run that
// it is used for; "" when they are, and where there are none.
std::string unused_checkpoints(
    const std::string& config_path, const std::string& run);

}  // namespace sherd::tools
