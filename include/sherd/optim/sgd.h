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
#include <sherd/base/error.h>
#include <sherd/optim/named_parameters.h>

namespace sherd {

struct SgdOptions {
  double learning_rate = 1e-2;  // At least 0.
  // At least 0. Any value but 0 costs one buffer of the slices' size.
  double momentum = 0.0;
  bool nesterov = false;  // Needs momentum.
  // Not decoupled: weight_decay times the value is added to the gradient.
  double weight_decay = 0.0;
  // As AdamWOptions::groups.
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

  // These are as AdamW's; the state is the momentum.
  void step();
  void zero_grad();
  void set_learning_rate(double learning_rate);
  double learning_rate() const;
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
  HandleState<std::unique_ptr<Impl>, "[optim] Sgd"> impl_;
};

}  // namespace sherd
