// SPDX-License-Identifier: Apache-2.0
#include "fsdp/module_gradients.h"

#include <utility>

#include "autograd/backward.h"
#include "autograd/gradient_hook.h"
#include "autograd/param_key.h"
#include "base/check.h"

namespace sherd::fsdp {
namespace {

constexpr const char* kRemedy =
    "where it does not lie, as this model is sharded: convert the module "
    "before fully_shard(), call "
    "fsdp.clip_grad_norm() instead of torch::nn::utils::clip_grad_norm_(), "
    "make optimizers over fsdp.parameters() or fsdp.named_parameters(), not "
    "over model->parameters(), and read `.grad()` of those; "
    "model->zero_grad() clears them, but not with set_to_none = false";

}  // namespace

ModuleGradients::ModuleGradients(const ModelUnits& model, Callbacks callbacks)
    : model_(model),
      callbacks_(std::move(callbacks)),
      items_(model.parameters.size()) {
  for (std::size_t p = 0; p < items_.size(); ++p) {
    if (model.parameters[p].trainable >= 0) {
      items_[p].before_gradient = autograd::add_pre_accumulation_hook(
          model.parameters[p].tensor,
          [this](at::Tensor&) { before_accumulation(); });
    }
  }
}

// Before a backward adds to `.grad()`, what is shown there goes. Each backward calls `hide` before it
// adds for the first time. Later it needs to look no more, as nothing is shown until its end; but
// nodes of a failed one may run after that.
void ModuleGradients::before_accumulation() {
  const int task = autograd::running_task();
  // Pairs with the store below, and with show(): a placeholder that is there is seen.
  if (hidden_for_.load(std::memory_order_acquire) != task ||
      shown_.load(std::memory_order_acquire)) {
    callbacks_.hide();
    // Another thread of this task must find `.grad()` as hide() has left it.
    hidden_for_.store(task, std::memory_order_release);
  }
}

ModuleGradients::~ModuleGradients() { close(); }

void ModuleGradients::close() {
  for (auto& item : items_) {
    item.before_gradient.reset();
  }
  (void)hide();
}

void ModuleGradients::show(int parameter) {
  const auto p = static_cast<std::size_t>(parameter);
  const auto& tensor = model_.parameters[p].tensor;
  auto& gradient = tensor.mutable_grad();
  if (gradient.defined() || tensor.numel() == 0) {
    return;
  }
  auto& item = items_[p];
  if (item.storage == nullptr) {
    item.storage = std::make_unique<autograd::ManagedStorage>(
        this, parameter, 0, static_cast<std::int64_t>(tensor.nbytes()),
        tensor.device());
    item.storage->empty(
        str("[fsdp] the gradient of parameter ", model_.parameters[p].name,
            " is read through the module, ", kRemedy));
  }
  item.showing = ++showings_;
  gradient = autograd::make_placeholder(
      tensor, *item.storage,
      [dropped = callbacks_.dropped, parameter, showing = item.showing] {
        dropped(parameter, showing);
      });
  shown_.store(true, std::memory_order_release);
}

std::vector<int> ModuleGradients::hide() {
  std::vector<int> lost;
  if (!shown_.exchange(false, std::memory_order_acq_rel)) {
    return lost;
  }
  for (std::size_t p = 0; p < items_.size(); ++p) {
    auto& item = items_[p];
    if (item.storage == nullptr) {
      continue;
    }
    auto& gradient = model_.parameters[p].tensor.mutable_grad();
    // It may be a view of it, which zero_grad() puts there for a moment.
    const bool ours =
        gradient.defined() && autograd::is_adopted(gradient, *item.storage);
    if (ours && autograd::is_placeholder(gradient)) {
      autograd::disarm_placeholder(gradient);
    } else if (item.showing != 0) {
      lost.push_back(static_cast<int>(p));
    }
    item.showing = 0;
    if (ours) {
      gradient.reset();
    }
  }
  return lost;
}

bool ModuleGradients::was_dropped(int parameter, std::uint64_t showing) {
  auto& item = items_[static_cast<std::size_t>(parameter)];
  return showing == item.showing && std::exchange(item.showing, 0) != 0;
}

void ModuleGradients::begin_use(
    std::span<const autograd::ParameterUse> uses, const char* operator_name) {
  const auto p = static_cast<std::size_t>(uses.front().tag->unit);
  if (autograd::in_backward()) {
    // Autograd adds to the placeholder without a call of our hook:
    // module->to(dtype) has given the parameter another accumulating node.
    callbacks_.check_identity(static_cast<int>(p));
  }
  throw Error(
      str("[fsdp] ", operator_name, " uses the gradient of parameter ",
          model_.parameters[p].name, " through the module, ", kRemedy),
      ErrorCode::kFailedPrecondition);
}

}  // namespace sherd::fsdp
