// SPDX-License-Identifier: Apache-2.0
#include <sherd/fsdp/activation_checkpointing.h>

#include <set>
#include "fsdp/unit_modules.h"

namespace sherd {

struct ActivationCheckpointing::SelectedModules {
  std::set<const torch::nn::Module*> modules;
  std::vector<std::string> names;
};

ActivationCheckpointing::ActivationCheckpointing(
    const torch::nn::Module& model,
    const units::Policy& policy,
    const CheckpointOptions& options)
    : options_(options) {
  auto taken = std::make_shared<SelectedModules>();
  for (auto& found : fsdp::unit_modules(model, policy)) {
    taken->modules.insert(found.module);
    taken->names.push_back(std::move(found.name));
  }
  selected_ = std::move(taken);
}

bool ActivationCheckpointing::takes(const torch::nn::Module& module) const {
  return selected_->modules.contains(&module);
}

const std::vector<std::string>& ActivationCheckpointing::names() const {
  return selected_->names;
}

}  // namespace sherd
