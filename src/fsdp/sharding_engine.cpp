// SPDX-License-Identifier: Apache-2.0
#include "fsdp/sharding_engine.h"

#include <utility>

namespace sherd {

ShardingEngine::ShardingEngine(fsdp::ModelUnits model)
    : ModelEngine("[fsdp] this model's sharding handle was closed"),
      model_(std::move(model)) {}

void ShardingEngine::watch_module_gradients() {
  module_gradients_ = std::make_unique<fsdp::ModuleGradients>(
      model_,
      fsdp::ModuleGradients::Callbacks{
          .hide = while_alive(
              this,
              [](ShardingEngine& self) {
                const std::lock_guard lock(self.mu_);
                self.hide_module_gradients();
              }),
          .check_identity = while_alive(
              this,
              [](ShardingEngine& self, int parameter) {
                const std::lock_guard lock(self.mu_);
                self.check_parameter(parameter);
              }),
          .dropped = while_alive(
              this,
              [](ShardingEngine& self, int parameter, std::uint64_t showing) {
                const std::lock_guard lock(self.mu_);
                if (self.module_gradients_->was_dropped(parameter, showing)) {
                  self.clear_gradient(parameter);
                }
              })});
}

void ShardingEngine::hide_module_gradients() {
  for (const int parameter : module_gradients_->hide()) {
    clear_gradient(parameter);
  }
}

void ShardingEngine::show_module_gradients() {
  if (autograd::any_backward()) {
    return;  // It may be about to add to a `.grad()`.
  }
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto parameter = static_cast<int>(p);
    if (model_.parameters[p].trainable >= 0 && has_gradient(parameter)) {
      module_gradients_->show(parameter);
    }
  }
}

void ShardingEngine::bump_versions() {
  for (const auto& parameter : model_.parameters) {
    if (!parameter.tensor.is_inference()) {
      parameter.tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

}  // namespace sherd
