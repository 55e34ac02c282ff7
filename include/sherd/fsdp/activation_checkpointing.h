// SPDX-License-Identifier: Apache-2.0
//
// ActivationCheckpointing runs those modules of a model as checkpoints that a policy of units
// chooses. LibTorch's modules have no forward hooks, so the code that calls a layer calls it
// through this object:
//
//   sherd::ActivationCheckpointing run(*model, units::every_nth_of_lists(2));
//   x = run(*layer, [layer](const at::Tensor& x) { return layer->forward(x); },
//           x);
//
// sherd's own models do: model->run_layers_with(run). Mirrors
// apply_activation_checkpointing(model, check_fn) of torch.distributed.
// Guide: docs/guide/checkpointing.md.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <sherd/autograd/checkpoint.h>
#include <sherd/fsdp/units.h>

namespace torch::nn {
class Module;
}

namespace sherd {

// A value; knows modules by their addresses, so a clone of the model needs one
// of its own. Thread rule: any thread.
class ActivationCheckpointing {
 public:
  // Asks the policy about every module below `model`, now. A module that it takes becomes a
  // checkpoint only where it is called through this object; one within another nests.
  explicit ActivationCheckpointing(
      const torch::nn::Module& model,
      const units::Policy& policy = units::children_of_lists(),
      const CheckpointOptions& options = {});

  bool takes(const torch::nn::Module& module) const;

  // The names of the modules taken, children before parents.
  const std::vector<std::string>& names() const;

  // Returns checkpoint(fn, inputs...) when the policy took `module`, else fn(inputs...).
  template <typename Function, typename... Inputs>
  auto operator()(
      const torch::nn::Module& module,
      Function fn,
      const Inputs&... inputs) const {
    return takes(module) ? checkpoint(options_, std::move(fn), inputs...)
                         : fn(inputs...);
  }

 private:
  struct SelectedModules;
  std::shared_ptr<const SelectedModules> selected_;
  CheckpointOptions options_;
};

}  // namespace sherd
