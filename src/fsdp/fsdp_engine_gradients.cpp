// SPDX-License-Identifier: Apache-2.0
// What the module's parameters show of gradients that lie in slices.
#include "fsdp/fsdp_engine.h"

namespace sherd::fsdp {

void FsdpEngine::watch_module_gradients() {
  const auto weak = weak_from_this();
  module_gradients_ = std::make_unique<ModuleGradients>(
      model_,
      ModuleGradients::Callbacks{
          .hide =
              [weak] {
                if (const auto self = weak.lock()) {
                  const std::lock_guard lock(self->mu_);
                  self->hide_module_gradients();
                }
              },
          .check_identity =
              [weak](int /*parameter*/) {
                if (const auto self = weak.lock()) {
                  const std::lock_guard lock(self->mu_);
                  self->integrity_->check();
                }
              },
          .dropped =
              [weak](int parameter, std::uint64_t showing) {
                if (const auto self = weak.lock()) {
                  const std::lock_guard lock(self->mu_);
                  if (self->module_gradients_->was_dropped(
                          parameter, showing)) {
                    self->clear_gradient(parameter);
                  }
                }
              }});
}

void FsdpEngine::clear_gradient(int parameter) {
  slices_->clear_gradient(parameter);
  gradients_->drop_kept(parameter);
}

void FsdpEngine::hide_module_gradients() {
  for (const int parameter : module_gradients_->hide()) {
    clear_gradient(parameter);
  }
}

void FsdpEngine::show_module_gradients() {
  if (autograd::any_backward()) {
    return;  // It may be about to add to one.
  }
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto parameter = static_cast<int>(p);
    if (model_.parameters[p].trainable >= 0 &&
        (slices_->has_gradient(parameter) || gradients_->keeps(parameter))) {
      module_gradients_->show(parameter);
    }
  }
}

}  // namespace sherd::fsdp
