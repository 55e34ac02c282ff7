// SPDX-License-Identifier: Apache-2.0
//
// Which modules of a model run as checkpoints, by a policy in the words of
// units. LibTorch's modules have no hooks: nobody can step into a forward that
// is called directly. So the code that calls a layer calls it through an
// ActivationCheckpointing, and the policy decides what becomes of the call:
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
#include <torch/nn/module.h>

namespace sherd {

// A value; knows modules by their addresses, so a clone of the model needs one
// of its own. Thread rule: any thread.
class ActivationCheckpointing {
 public:
  // Asks the policy about every module below `model`, now. What it takes is a
  // checkpoint only if something calls it through this object; a module within
  // a taken one makes a checkpoint within a checkpoint.
  explicit ActivationCheckpointing(
      const torch::nn::Module& model,
      const units::Policy& policy = units::children_of_lists(),
      const CheckpointOptions& options = {});

  bool takes(const torch::nn::Module& module) const;

  // Of the modules taken, children before parents.
  const std::vector<std::string>& names() const;

  // checkpoint(fn, inputs...) when the policy took `module`, else
  // fn(inputs...).
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
