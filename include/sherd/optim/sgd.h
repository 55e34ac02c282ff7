// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent over this rank's slices, with momentum (Sutskever et al. 2013). The
// numbers are torch::optim::SGD's without dampening. As in AdamW, parameters have names, slices
// that are adjacent in memory are updated by one kernel, and step() ends by publishing. It shares
// the slices' memory with whoever made them and owns its state. Thread rule: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

struct SgdOptions {
  double learning_rate = 1e-2;  // At least 0.
  // At least 0. Anything but 0 costs one buffer of the slices' size.
  double momentum = 0.0;
  bool nesterov = false;  // Needs momentum.
  // Not decoupled: adds this times the value to the gradient.
  double weight_decay = 0.0;
  // First match wins. Groups that alternate in memory cut runs: each cut costs one more kernel.
  std::vector<ParameterGroup> groups = {};
};

class Sgd {
 public:
  // Throws Error as AdamW's constructor does, and for nesterov without momentum.
  explicit Sgd(NamedParameters parameters, const SgdOptions& options = {});
  ~Sgd();
  Sgd(Sgd&&) noexcept;
  Sgd& operator=(Sgd&&) noexcept;
  Sgd(const Sgd&) = delete;
  Sgd& operator=(const Sgd&) = delete;

  // Updates every slice that has a gradient, then publishes. The others and their momentum stay as
  // they are. Collective where publishing is: every rank calls it, also one without slices.
  // Gradients are only read. Throws Error, before anything has changed, when a gradient does not
  // fit its slice or is sparse.
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

  // The momentum of a slice, zero before its first gradient. It shares the optimizer's memory:
  // writing it restores it. Throws Error when this rank has no slice of that name, or momentum is
  // 0.
  at::Tensor momentum_buffer(const std::string& name);

  // The momenta of all slices, whether updated or not, which allocates them; none where momentum is
  // 0.
  std::vector<OptimizerTensor> tensors(bool all = true);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
