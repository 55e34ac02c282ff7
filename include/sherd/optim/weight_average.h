// SPDX-License-Identifier: Apache-2.0
//
// WeightAverage is an exponential moving average of the weights (EMA), for evaluation and export.
// Each rank averages its own slices, so an update sends nothing. Mirrors
// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(). Thread rule: one thread.
#pragma once

#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

class WeightAverage {
 public:
  // Begins with the present values of the parameters that a handle of fully_shard() or replicate()
  // gives; the averages have the dtype of the slices. `decay` is the share of the average that an
  // update keeps; throws Error unless it is in [0, 1). Buffers are not averaged.
  WeightAverage(NamedParameters parameters, double decay);

  // Averages the present values, and takes over those that are no floating-point numbers. Call it
  // after each optimizer step.
  void update();

  // Begins again with the present values, for instance after loading a checkpoint.
  void reset();

  // Exchanges weights and averages. Collective, between two steps. Call it before an evaluation and
  // once more after it; training then goes on with the same bits. In between update(), reset() and
  // averages() throw Error.
  void swap();

  // The averages, under the names of the parameters, for
  // CheckpointState::add(section, averages()) or gather_full_state(). They share this object's
  // memory, so that loading a checkpoint writes them.
  NamedParameters averages() const;

 private:
  void check_not_swapped(const char* call) const;

  NamedParameters parameters_;
  double decay_;
  std::vector<at::Tensor> averages_;  // In the order of parameters_.items.
  bool swapped_ = false;
};

}  // namespace sherd
