// SPDX-License-Identifier: Apache-2.0
//
// RunCheckpoints saves and restores the state of a run: the model, its optimizers, the state of its
// comm hook, and the position in the data. They are in the run's folder "checkpoints". Thread rule:
// one thread.
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

  // Collective. Continues from the newest readable checkpoint, and returns its step, which is 0 for
  // one that was imported; nothing if there is no checkpoint. Throws Error as
  // load_newest_checkpoint() does, if the data or the options of the model differ, and if another
  // optimizer made it.
  std::optional<std::int64_t> resume();
  // What a user should know about the checkpoint that resume() loaded; may be "".
  const std::string& note() const { return note_; }

  // Collective, between two steps. If the disk fails, this checkpoint is lost and a warning is
  // printed, which may come with the next one.
  void save(std::int64_t step);
  // Collective. Throws Error if the last save failed.
  void wait() { saver_.wait(); }

 private:
  LoadReport load(const std::string& folder);
  void warn_if_disk_fails(const std::function<void()>& action);

  Trainer& trainer_;
  const std::string folder_;
  const std::map<std::string, std::string> about_;  // Describes the model.
  std::string note_;
  CheckpointState state_;
  CheckpointSaver saver_;
};

// The section of checkpoints that has the state of --dtype fp16.
inline constexpr const char* kScalerSection = "scaler";

// The values of a checkpoint that say which model it has and what its tokens are.
std::map<std::string, std::string> model_metadata(const Trainer& trainer);

// Throws Error that names the option if a job, whose model_metadata() is given, would go on from a
// checkpoint with another model. Checkpoints of other programs do not tell.
void expect_model_of(
    const CheckpointContent& content,
    const std::map<std::string, std::string>& job);

// Collective. Whether the run has a checkpoint, as rank 0 sees it.
bool has_checkpoint(const World& world, const std::string& run_path);

// Says that the checkpoints next to a config file are not those of the run for which it is used; ""
// if they are, or if there are none.
std::string unused_checkpoints(
    const std::string& config_path, const std::string& run);

}  // namespace sherd::tools
