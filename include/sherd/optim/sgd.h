// SPDX-License-Identifier: Apache-2.0
//
// Stochastic gradient descent over this rank's slices, with momentum (Sutskever et al. 2013). It
// computes the same numbers as torch::optim::SGD without dampening. As in AdamW, parameters have
// names, slices that are adjacent in memory are updated by one kernel, and step() ends by
// publishing. It shares the slices' memory with the handle that made them and owns its state.
// Thread rule: one thread.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

struct SgdOptions {
  double learning_rate = 1e-2;  // At least 0.
  // At least 0. Any value but 0 costs one buffer of the slices' size.
  double momentum = 0.0;
  bool nesterov = false;  // Needs momentum.
  // Not decoupled: weight_decay times the value is added to the gradient.
  double weight_decay = 0.0;
  // A parameter belongs to the first group that matches its name. If groups alternate in memory,
  // fewer neighbouring slices can be updated together, and each break costs one more kernel.
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

  // Updates every slice that has a gradient, then publishes. Slices without a gradient keep their
  // values and momentum. Collective if publishing is: then every rank calls it, even one without
  // slices. Gradients are only read. Throws Error, before anything has changed, if a gradient does
  // not fit its slice or is sparse.
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

  // The momentum of a slice, zero before its first gradient. It shares the optimizer's memory:
  // writing it restores it. Throws Error if this rank has no slice of that name, or if momentum is
  // 0.
  at::Tensor momentum_buffer(const std::string& name);

  // The momenta of slices that have had an update, and of those named in `also`, whose momenta are
  // allocated if needed. Ignores other names in `also`. Empty if momentum is 0.
  std::vector<OptimizerTensor> tensors(const std::set<std::string>& also);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sherd
