// SPDX-License-Identifier: Apache-2.0
//
// AdamW over this rank's slices (Loshchilov, Hutter: Decoupled Weight Decay Regularization, arXiv
// 1711.05101). It computes the same numbers as torch::optim::AdamW, and differs in three ways:
// parameters have names, slices that are adjacent in memory are updated by one kernel, and step()
// ends by making the new values visible to the other ranks. It shares the slices' memory with the
// handle that made them and owns its state. Thread rule: one thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/base/error.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

struct AdamWOptions {
  double learning_rate = 1e-3;  // At least 0.
  double beta1 = 0.9;           // In [0, 1), like beta2.
  double beta2 = 0.999;
  double epsilon = 1e-8;  // At least 0.
  // Decoupled: each step first multiplies values by 1 - learning_rate * weight_decay.
  double weight_decay = 1e-2;
  // A parameter belongs to the first group that matches its name. If groups alternate in memory,
  // fewer neighbouring slices can be updated together, and each break costs one more kernel.
  std::vector<ParameterGroup> groups = {};
  // Makes the updates during backward. If the ranks of a shard group share memory, the pass that
  // sums a slice's gradient also updates the slice, as soon as every rank has posted that gradient:
  // there are no sharded gradients, and step() only publishes. With replicate() the updates are
  // made at the end of backward. In all other cases step() does everything. The values are the
  // same, up to the rounding of a slice's last few elements. When updates are made in backward,
  // they use the learning rate that was set when it began; step() must follow every synchronised
  // backward; `.grad()` is undefined, and clip_grad_norm() is an error; micro-batches accumulate
  // only under no_sync(). With shards, but not with replicate(), it is an error to use a parameter
  // again after its gradient is complete, and a backward that fails on any rank ends the training
  // of this model, because some slices are already updated. Mirrors optimizers in PyTorch's
  // Tensor.register_post_accumulate_grad_hook.
  bool in_backward = false;
};

// The optimizer state of one slice. The tensors share the optimizer's memory, so writing them, for
// example from a checkpoint, restores the state.
struct AdamWState {
  at::Tensor exp_avg;     // Shape and dtype of the slice.
  at::Tensor exp_avg_sq;  // Like exp_avg.
  at::Tensor step;        // A 0-D float: the number of updates made.
};

class AdamW {
 public:
  // The state of a slice is allocated when the first gradient of its memory range arrives. Throws
  // Error if an option is out of range, if a name appears twice, or if a slice is undefined, empty,
  // has gaps in memory or, unless frozen, is not of a floating-point type.
  explicit AdamW(NamedParameters parameters, const AdamWOptions& options = {});
  ~AdamW();
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // Updates every slice that has a gradient, then publishes. Slices without a gradient keep their
  // values, state and step count. Collective if publishing is: then every rank calls it, even one
  // without slices. Gradients are only read. Throws Error, before anything has changed, if a
  // gradient does not fit its slice or is sparse.
  void step();

  // Makes every gradient undefined, so that the next step() skips parameters that no backward uses.
  // Gradients that no_sync() has kept on this rank are dropped, too.
  void zero_grad();

  // Takes effect from the next step() on; each group keeps its learning_rate_scale. Throws Error,
  // and changes nothing, if the rate is negative or not finite.
  void set_learning_rate(double learning_rate);
  double learning_rate() const;

  // The slices' names, in the order given to the constructor.
  std::vector<std::string> names() const;

  // The state of a slice; it is allocated, as zeros, if the slice has had no gradient yet. Throws
  // Error if this rank has no slice of that name.
  AdamWState state(const std::string& name);

  // The states of slices, in order: of those that have had an update and of those named in `also`,
  // whose state is allocated if needed. All ranks that have slices of a parameter agree on whether
  // it is included. Ignores other names in `also`.
  std::vector<OptimizerTensor> tensors(const std::set<std::string>& also);

 private:
  struct Impl;
  HandleState<std::unique_ptr<Impl>, "[optim] AdamW"> impl_;
};

}  // namespace sherd
