// SPDX-License-Identifier: Apache-2.0
#include <sherd/shard/activation_checkpointing.h>

#include <set>
#include "shard/taken_modules.h"

namespace sherd {

struct ActivationCheckpointing::Taken {
  std::set<const torch::nn::Module*> modules;
  std::vector<std::string> names;
};

ActivationCheckpointing::ActivationCheckpointing(
    const torch::nn::Module& model,
    const units::Policy& policy,
    const CheckpointOptions& options)
    : options_(options) {
  auto taken = std::make_shared<Taken>();
  for (auto& found : shard::taken_modules(model, policy)) {
    taken->modules.insert(found.module);
    taken->names.push_back(std::move(found.name));
  }
  taken_ = std::move(taken);
}

bool ActivationCheckpointing::takes(const torch::nn::Module& module) const {
  return taken_->modules.contains(&module);
}

const std::vector<std::string>& ActivationCheckpointing::names() const {
  return taken_->names;
}

}  // namespace sherd
