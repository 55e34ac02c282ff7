// SPDX-License-Identifier: Apache-2.0
//
// Engine is all that `sherd train` asks of whatever distributes it: who this
// rank is, an update after each backward, and a few numbers shared between
// ranks. It keeps the training loop the same for every strategy and world size.
// Thread rule: one thread; the model must outlive it.
#pragma once

#include <memory>
#include <vector>
#include <sherd/models/gpt.h>
#include "train/config.h"

namespace sherd::tools {

struct Place {
  int rank = 0;
  int world_size = 1;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // After backward: clips the gradient, takes one optimizer step at this
  // learning rate and clears the gradients. Returns the norm of the whole
  // gradient before clipping. Collective.
  virtual double update(double learning_rate) = 0;

  // Every rank's numbers, by rank. Collective; equally many from each.
  virtual std::vector<std::vector<double>> gather(
      const std::vector<double>& mine) = 0;

  // Ends the connections in order. Collective.
  virtual void close() = 0;
};

// Throws Error when the environment says that this is one rank of several.
Place place_from_environment();

std::unique_ptr<Engine> make_engine(
    models::GptImpl& model, const TrainConfig& config);

}  // namespace sherd::tools
