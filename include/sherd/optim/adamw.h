// SPDX-License-Identifier: Apache-2.0
//
// AdamW over this rank's slices (Loshchilov, Hutter: Decoupled Weight Decay Regularization, arXiv
// 1711.05101). The numbers are torch::optim::AdamW's. It differs in three ways: parameters have
// names, slices that are adjacent in memory are updated by one kernel, and step() ends by making
// the new values visible to the other ranks. It shares the slices' memory with whoever made them
// and owns its state. Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

struct AdamWOptions {
  double learning_rate = 1e-3;  // At least 0.
  double beta1 = 0.9;           // In [0, 1), as beta2.
  double beta2 = 0.999;
  double epsilon = 1e-8;  // At least 0.
  // Decoupled: each step first scales values by 1 - learning rate * this.
  double weight_decay = 1e-2;
  // First match wins. Groups that alternate in memory cut runs: each cut costs one more kernel.
  std::vector<ParameterGroup> groups = {};
  // Updates in backward. If the ranks of a shard group share memory, the pass that sums a slice's
  // gradient also updates the slice, as soon as every rank has posted that gradient: there are no
  // sharded gradients, and step() only publishes. Replicas update at the end of backward. In all
  // other cases step() does everything. Values are the same, up to the rounding of a slice's last
  // few elements. If updates are made in backward, they use the learning rate from its beginning;
  // step() must follow every synchronised backward; `.grad()` is undefined and clip_grad_norm() is
  // an error; micro-batches accumulate only under no_sync(). With shards, not with replicas, it is
  // an error to use a parameter again after its gradient is complete, and a backward that fails on
  // any rank ends the training of this model, because some slices are already updated. Mirrors
  // PyTorch's optimizers in Tensor.register_post_accumulate_grad_hook.
  bool in_backward = false;
};

// The optimizer state of one slice. The tensors share the optimizer's memory: writing them, e.g.
// from a checkpoint, restores it.
struct AdamWState {
  at::Tensor exp_avg;     // Shape and dtype of the slice.
  at::Tensor exp_avg_sq;  // The same.
  at::Tensor step;        // One float without dimensions: updates made.
};

class AdamW {
 public:
  // State is allocated when the first gradient of its memory range arrives. Throws Error when an
  // option is out of range, a name appears twice, or a slice is undefined, empty, not contiguous or
  // not of a floating-point type.
  explicit AdamW(NamedParameters parameters, const AdamWOptions& options = {});
  ~AdamW();
  AdamW(AdamW&&) noexcept;
  AdamW& operator=(AdamW&&) noexcept;
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // Updates every slice that has a gradient, then publishes. The others, their state and their step
  // count stay as they are. Collective where publishing is: every rank calls it, also one without
  // slices. Gradients are only read. Throws Error, before anything has changed, when a gradient
  // does not fit its slice or is sparse.
  void step();

  // Makes every gradient undefined, so that the next step() skips a parameter that no backward
  // uses.
  void zero_grad();

  // Takes effect from the next step() on; a group keeps its scale. Throws Error, changing nothing,
  // unless at least 0 and finite.
  void set_learning_rate(double learning_rate);
  double learning_rate() const;

  // In the order given to the constructor.
  std::vector<std::string> names() const;

  // The state of a slice, allocated (zero) when it has had no gradient yet. Throws Error when this
  // rank has no slice of that name.
  AdamWState state(const std::string& name);

  // The states of all slices, one tensor after another. Those of slices without an update are
  // included, and allocated, only with `all`. The same parameters on every rank that has slices of
  // them.
  std::vector<OptimizerTensor> tensors(bool all);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
