// SPDX-License-Identifier: Apache-2.0
#include "fsdp/sharding_engine.h"

#include <utility>

#include <ATen/ops/empty.h>

#include "autograd/gradient_hook.h"
#include "base/check.h"

namespace sherd {

ShardingEngine::ShardingEngine(fsdp::ModelUnits model)
    : ModelEngine("[fsdp] this model's sharding handle was closed"),
      model_(std::move(model)) {}

void ShardingEngine::cast_forwards(bool full_precision) {
  for (const auto& cast : model_.forward_casts) {
    *cast.used = cast.dtypes;
    if (full_precision) {
      cast.used->inputs = std::nullopt;
    }
  }
}

NamedParameters ShardingEngine::without_slices() const {
  NamedParameters named;
  named.tied_names = model_.tied_names;
  named.uses_fp16 = fsdp::uses_fp16(model_);
  for (const auto& parameter : model_.parameters) {
    const auto& tensor = parameter.tensor;
    if (tensor.numel() == 0) {
      named.state_only.push_back(
          {parameter.name,
           at::empty(tensor.sizes(), tensor.options().requires_grad(false))});
    }
  }
  return named;
}

void ShardingEngine::check_summon_scope(bool open) {
  SHERD_CHECK_AS(
      kFailedPrecondition, open, "[fsdp] this summon scope has ended");
}

void ShardingEngine::check_summon_options(const SummonOptions& options) {
  SHERD_CHECK(
      options.read_only || !options.rank0_only,
      "[fsdp] SummonOptions: expected read_only with rank0_only, since other "
      "ranks would not have what is written");
}

void ShardingEngine::check_summoned_gradients(bool with_gradients) {
  SHERD_CHECK_AS(
      kFailedPrecondition, with_gradients,
      "[fsdp] this summon scope has no gradients; expected "
      "SummonOptions::with_gradients");
}

void ShardingEngine::check_full_precision_scope(bool open, bool summoned) {
  SHERD_CHECK_AS(
      kFailedPrecondition, !open && !summoned,
      "[fsdp] full_precision() inside ",
      summoned ? "summon_full_parameters()" : "another such scope");
}

void ShardingEngine::check_budget_change(
    Strategy strategy, std::optional<std::int64_t> bytes, bool has_limit) {
  SHERD_CHECK(
      bytes || strategy != Strategy::kNoShard,
      "[fsdp] a sharded model stays so; expected kFullShard or kShardGradOp, "
      "found kNoShard");
  SHERD_CHECK(
      !has_limit,
      "[fsdp] memory_bytes decides how many units stay whole; expected no "
      "other budget beside it");
}

void ShardingEngine::set_gradient_hooks() {
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto& parameter = model_.parameters[p];
    if (parameter.trainable >= 0 &&
        !autograd::has_gradient_hook(parameter.tensor)) {
      autograd::set_gradient_hook(
          parameter.tensor,
          while_alive(
              this,
              [index = static_cast<int>(p)](
                  ShardingEngine& self, at::Tensor gradient) {
                self.gradient_arrived(index, std::move(gradient));
              }));
    }
  }
}

void ShardingEngine::watch_module_gradients() {
  module_gradients_ = std::make_unique<fsdp::ModuleGradients>(
      model_,
      fsdp::ModuleGradients::Callbacks{
          .hide = while_alive(
              this,
              [](ShardingEngine& self) {
                const std::lock_guard lock(self.mu_);
                autograd::note_writes(self.weak_from_this());
                self.hide_module_gradients();
                self.set_gradient_hooks();
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
  // A backward that adds to a `.grad()` of this model has noted so before, under the lock. One that
  // comes to its first later hides what is shown here.
  show_due_ = autograd::writes_under_way(weak_from_this());
  if (show_due_) {
    return;
  }
  for (std::size_t p = 0; p < model_.parameters.size(); ++p) {
    const auto parameter = static_cast<int>(p);
    if (model_.parameters[p].trainable >= 0 && has_gradient(parameter)) {
      module_gradients_->show(parameter);
    }
  }
}

void ShardingEngine::writes_ended() {
  const std::lock_guard lock(mu_);
  if (show_due_ && usable()) {
    show_module_gradients();
  }
}

void ShardingEngine::bump_versions() {
  for (const auto& parameter : model_.parameters) {
    if (!parameter.tensor.is_inference()) {
      parameter.tensor.unsafeGetTensorImpl()->bump_version();
    }
  }
}

bool ShardingEngine::begin_close() {
  if (std::exchange(closed_, true)) {
    return false;
  }
  if (module_gradients_) {  // Not if it never started.
    module_gradients_->close();
  }
  for (const auto& parameter : model_.parameters) {
    autograd::remove_gradient_hook(parameter.tensor);
  }
  return true;
}

}  // namespace sherd
