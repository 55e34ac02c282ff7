// SPDX-License-Identifier: Apache-2.0
//
// ActivationCheckpointing runs some modules of a model, chosen by a policy of units, as
// checkpoints. LibTorch's modules have no forward hooks, so the code that calls a layer calls it
// through this object:
//
//   sherd::ActivationCheckpointing run(*model, units::every_nth_of_lists(2));
//   x = run(*layer, [layer](const at::Tensor& x) { return layer->forward(x); },
//           x);
//
// sherd's own models do so after model->run_layers_with(run). Mirrors
// apply_activation_checkpointing(model, check_fn) of torch.distributed. Guide:
// docs/guide/checkpointing.md.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>
#include <sherd/autograd/checkpoint.h>
#include <sherd/fsdp/units.h>

namespace torch::nn {
class Module;
}

namespace sherd {

namespace fsdp {
class CheckpointRegions;
class StepRecorder;
}  // namespace fsdp

// A value. It knows modules by their addresses, so a clone of the model needs an object of its own.
// Thread rule: any thread.
class ActivationCheckpointing {
 public:
  // Asks the policy about every module below `model` at once. A module that it takes becomes a
  // checkpoint only where it is called through this object; a checkpoint within another one nests.
  explicit ActivationCheckpointing(
      const torch::nn::Module& model,
      const units::Policy& policy = units::children_of_lists(),
      const CheckpointOptions& options = {});

  bool takes(const torch::nn::Module& module) const;

  // The names of the chosen modules, children before parents.
  const std::vector<std::string>& names() const;

  // Returns checkpoint(fn, inputs...) if the policy took `module`, otherwise fn(inputs...). If
  // FullyShardOptions::memory_bytes decided that `module` keeps its activations, also returns
  // fn(inputs...).
  template <typename Function, typename... Inputs>
  auto operator()(
      const torch::nn::Module& module,
      Function fn,
      const Inputs&... inputs) const
      -> std::decay_t<std::invoke_result_t<Function&, const Inputs&...>> {
    const auto region = region_of(module);
    if (!region.runs_again) {
      return fn(inputs...);
    }
    if (region.recorder == nullptr) {
      return checkpoint(options_, std::move(fn), inputs...);
    }
    return checkpoint(
        options_,
        [region, fn = std::move(fn)](const auto&... now) mutable {
          const Run run(region);
          return fn(now...);
        },
        inputs...);
  }

  // For fully_shard(). Copies share it.
  const std::shared_ptr<fsdp::CheckpointRegions>& regions() const {
    return regions_;
  }

 private:
  struct Region {
    int number = -1;
    bool runs_again = false;
    std::shared_ptr<fsdp::StepRecorder> recorder;  // Usually null.
  };
  Region region_of(const torch::nn::Module& module) const;

  // Tells the recorder that the region runs.
  class Run {
   public:
    explicit Run(const Region& region);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    const Region& region_;
    bool again_ = false;
    bool taken_ = false;
  };

  std::shared_ptr<fsdp::CheckpointRegions> regions_;
  CheckpointOptions options_;
};

}  // namespace sherd
