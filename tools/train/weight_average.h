// SPDX-License-Identifier: Apache-2.0
//
// WeightAverage is an exponential moving average of the weights, for evaluation and
// export: each rank averages its own slices. Mirrors
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(). Thread rule: one
// thread.
#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/ckpt/checkpoint.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::tools {

// Adds tensors with the layout of parameters to a section, under their names.
void add_slices(
    CheckpointState& state,
    const std::string& section,
    const NamedParameters& slices);

class WeightAverage {
 public:
  // Begins with the present values. `decay` is the share of the average that an update keeps, in
  // [0, 1).
  WeightAverage(NamedParameters parameters, double decay);

  // Begins again with the present values.
  void reset();

  // Called after each optimizer step.
  void update();

  // Adds them to section "ema", under the names of the parameters.
  void add_to(CheckpointState& state) const;

 private:
  const NamedParameters parameters_;
  const double decay_;
  std::vector<at::Tensor> averages_;  // In the order of parameters_.items.
};

}  // namespace sherd::tools
