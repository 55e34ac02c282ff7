// SPDX-License-Identifier: Apache-2.0
//
// Trainer is what one rank of a training job has: its config, world, data, model and engine, and
// what a step does with them. train(), train_replica() and print_plan() decide how steps follow one
// another. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <sherd/data/batches.h>
#include <sherd/data/blended_corpus.h>
#include <sherd/models/language_model.h>
#include <sherd/world/world.h>
#include "train/config.h"
#include "train/sample_text.h"
#include "train/step_meter.h"
#include "train/step_metrics.h"
#include "train/training_engine.h"

namespace sherd::tools {

class Trainer {
 public:
  // Collective. Throws Error as GlobalBatches and TrainingEngine do.
  Trainer(
      TrainConfig config,
      std::unique_ptr<data::BlendedCorpus> corpus,
      const World& world);

  const TrainConfig& config() const { return config_; }
  const World& world() const { return world_; }
  const data::BlendedCorpus& corpus() const { return *corpus_; }
  data::GlobalBatches& batches() { return batches_; }
  models::LanguageModel& model() { return *model_; }
  TrainingEngine& engine() { return engine_; }
  bool leads() const { return world_.rank() == 0; }

  // The step after which this start of the run ends.
  std::int64_t last_step() const;
  // The learning rate of a step, counted from 0.
  double learning_rate(std::int64_t step) const;
  std::int64_t parameter_count() const;
  // Whether each token of the data is a byte of text.
  bool reads_bytes() const;
  // Collective. The run's folder: --run, or else a new one that rank 0 makes, since the clocks of
  // others may differ.
  std::string run_path() const;

  // The number of this rank's first sample in a step, counted from 0, of a run
  // without replicas.
  std::int64_t first_sample(std::int64_t step) const;

  // Forward and backward over samples, the first of which has that number, which also seeds
  // dropout, in as many parts as --micro-batches says; returns the loss. `before_last_backward` is
  // called before the last part.
  double forward_backward(
      std::int64_t first_sample,
      const data::Batch& batch,
      const std::function<void()>& before_last_backward = [] {});

  // Collective, called after forward_backward(). `record` has the step and this rank's loss, and
  // `here` the cost of the step on this rank. Completes the record with the results of all ranks
  // for `sequences` rows, and with a validation if one is due. Its tokens are those of this step.
  // Returns the largest `request` of any rank.
  int complete(
      StepMetrics& record,
      const RankMetrics& here,
      std::int64_t sequences,
      int request);

  // Collective. A text that continues the start of the validation text; without ids if
  // --sample-tokens is 0.
  Sample sample();

  // Collective. Ends engine and world.
  void close();

 private:
  double validate();

  const TrainConfig config_;
  World world_;
  const Mesh mesh_;
  const std::unique_ptr<data::BlendedCorpus> corpus_;
  data::GlobalBatches batches_;
  const at::Device device_;
  const std::shared_ptr<models::LanguageModel> model_;
  TrainingEngine engine_;
  const double flops_per_token_;
  const double peak_flops_;
};

}  // namespace sherd::tools
