// SPDX-License-Identifier: Apache-2.0
#include "fsdp/single_rank_engine.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "autograd/gradient_hook.h"
#include "autograd/param_key.h"
#include "base/check.h"
#include "fsdp/clip_gradients.h"
#include "fsdp/parameter_integrity.h"

namespace sherd::fsdp {
namespace {

std::vector<at::Tensor> defined_only(std::vector<at::Tensor> tensors) {
  std::erase_if(tensors, [](const auto& tensor) { return !tensor.defined(); });
  return tensors;
}

}  // namespace

SingleRankEngine::SingleRankEngine(
    ModelUnits model,
    std::optional<MemoryPlanner::Limit> memory,
    double divide_factor)
    : ShardingEngine(std::move(model)),
      gradient_scale_(1.0 / divide_factor),
      memory_limit_(std::move(memory)) {
  const c10::InferenceMode off(false);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : model_.parameters) {
    auto& slice = slices_.emplace_back();
    if (parameter.tensor.numel() == 0) {
      continue;
    }
    autograd::drop_view_base(parameter.tensor);
    if (!parameter.tensor.is_contiguous()) {
      parameter.tensor.set_data(parameter.tensor.detach().contiguous());
    }
    slice = parameter.tensor.detach().view({-1}).variable_data();
    slice.set_requires_grad(parameter.tensor.requires_grad());
  }
}

SingleRankEngine::~SingleRankEngine() { close(); }

void SingleRankEngine::start() {
  if (memory_limit_) {
    memory_ = std::make_unique<MemoryPlanner>(MemoryPlanner::Options{
        .limit = *memory_limit_, .meter = memory_meter_of(model_.device)});
  }
  hook_due_.assign(slices_.size(), false);
  synchronised_.resize(slices_.size());
  for (const auto& parameter : model_.parameters) {
    parameter.tensor.mutable_grad().reset();
  }
  set_gradient_hooks();
  autograd::install_param_key();  // Placeholders have it, parameters do not.
  autograd::install_backward_engine();
  watch_module_gradients();
  idle_.remember(defined_only(slices_));
}

void SingleRankEngine::clear_gradient(int parameter) {
  if (const auto& slice = slices_[static_cast<std::size_t>(parameter)];
      slice.defined()) {
    slice.mutable_grad().reset();
  }
}

bool SingleRankEngine::has_gradient(int parameter) const {
  const auto& slice = slices_[static_cast<std::size_t>(parameter)];
  return slice.defined() && slice.grad().defined();
}

void SingleRankEngine::begin_no_sync(NoSyncAxis axis) {
  const std::lock_guard lock(mu_);
  no_sync_scopes_ += axis == NoSyncAxis::kBoth ? 1 : 0;
}

void SingleRankEngine::end_no_sync(NoSyncAxis axis) {
  const std::lock_guard lock(mu_);
  no_sync_scopes_ -= axis == NoSyncAxis::kBoth ? 1 : 0;
}

// As on several ranks: what a failed backward leaves is nothing, or, under no_sync(), what
// synchronised ones have brought before.
void SingleRankEngine::end_of_backward(const std::exception_ptr& failure) {
  if (failure) {
    hook_due_.assign(slices_.size(), false);
  }
  if (!usable()) {
    return;
  }
  if (no_sync_scopes_ == 0) {
    synchronised_.assign(slices_.size(), {});
    for (std::size_t p = 0; failure && p < slices_.size(); ++p) {
      clear_gradient(static_cast<int>(p));
    }
  } else if (failure) {
    drop_unsynchronised();
  }
  show_module_gradients();
}

// A gradient that the user has written since, to zero it for example, has no part that could be told
// from the rest.
bool SingleRankEngine::has_changed_since_added(int parameter) const {
  const auto& grad = slices_[static_cast<std::size_t>(parameter)].grad();
  const auto& before = synchronised_[static_cast<std::size_t>(parameter)];
  return !grad.defined() || before.with_added != grad.unsafeGetTensorImpl() ||
      before.version != grad._version();
}

void SingleRankEngine::begin_unsynchronised(int parameter) {
  auto& grad = slices_[static_cast<std::size_t>(parameter)].mutable_grad();
  auto& before = synchronised_[static_cast<std::size_t>(parameter)];
  if (before.with_added != nullptr && has_changed_since_added(parameter)) {
    before.sum.reset();
  } else if (before.with_added == nullptr && grad.defined()) {
    before.sum = std::exchange(grad, grad.clone());
  }
}

void SingleRankEngine::drop_unsynchronised() {
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    auto& before = synchronised_[p];
    if (before.with_added == nullptr) {
      continue;
    }
    const bool changed = has_changed_since_added(static_cast<int>(p));
    slices_[p].mutable_grad() = changed ? at::Tensor() : std::move(before.sum);
    before = {};
  }
}

void SingleRankEngine::call_hooks(std::unique_lock<std::mutex>& lock) {
  if (no_sync_scopes_ > 0 || !usable()) {
    return;
  }
  std::vector<at::Tensor> hooked;
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    if (hook_due_[p] && autograd::has_post_accumulation_hook(slices_[p])) {
      hooked.push_back(slices_[p]);
    }
  }
  hook_due_.assign(slices_.size(), false);
  call_unlocked(lock, [&] {
    for (const auto& slice : hooked) {
      autograd::call_post_accumulation_hook(slice);
    }
  });
}

void SingleRankEngine::check_parameter(int parameter) const {
  const auto p = static_cast<std::size_t>(parameter);
  SHERD_CHECK_AS(
      kFailedPrecondition, shares_memory(p), "[fsdp] parameter ",
      model_.parameters[p].name,
      " was given another storage after sharding (module->to(), set_data() or "
      "the like); convert the module before fully_shard, or write values "
      "inside summon_full_parameters()");
}

bool SingleRankEngine::shares_memory(std::size_t parameter) const {
  const auto& slice = slices_[parameter];
  return !slice.defined() ||
      model_.parameters[parameter].tensor.const_data_ptr() ==
      slice.const_data_ptr();
}

void SingleRankEngine::check_parameters() const {
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    check_parameter(static_cast<int>(p));
  }
}

void SingleRankEngine::gradient_arrived(int parameter, at::Tensor gradient) {
  const auto& slice = slices_[static_cast<std::size_t>(parameter)];
  if (!slice.defined()) {
    return;
  }
  check_parameter(parameter);
  const std::lock_guard lock(mu_);
  note_backward();  // Its end shows the module's gradients again.
  if (!gradient.defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  auto dense = gradient.is_sparse() ? gradient.to_dense() : std::move(gradient);
  // Not a view for autograd: optimizers detach_() gradients in place.
  auto flat = dense.detach().reshape({-1}).variable_data();
  if (gradient_scale_ != 1.0) {
    flat = flat.mul(gradient_scale_);
  }
  if (no_sync_scopes_ > 0) {
    begin_unsynchronised(parameter);
  }
  auto& grad = slice.mutable_grad();
  if (grad.defined()) {
    grad.add_(flat);
  } else {
    grad = std::move(flat);
  }
  if (no_sync_scopes_ > 0) {
    auto& before = synchronised_[static_cast<std::size_t>(parameter)];
    before.with_added = grad.unsafeGetTensorImpl();
    before.version = grad._version();
  }
  ++gradients_;
  hook_due_[static_cast<std::size_t>(parameter)] = true;
  idle_.note_gradients({slice});
  if (gradients_ == IdleOptimizerDetector::kBackwards * trainable()) {
    warn_if_idle();
  }
}

std::int64_t SingleRankEngine::trainable() const {
  return std::ranges::count_if(
      model_.parameters, [this](const auto& parameter) {
        return !model_.flat_of(parameter).starts_frozen;
      });
}

void SingleRankEngine::warn_if_idle() {
  if (!published_ && idle_.change_due() &&
      !idle_.changed(defined_only(slices_))) {
    // There were at least as many: a parameter may lack a gradient in some.
    idle_.warn(gradients_ / std::max<std::int64_t>(trainable(), 1));
  }
}

NamedParameters SingleRankEngine::named_parameters() {
  auto named = without_slices();
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    if (slices_[p].defined()) {
      const auto& parameter = model_.parameters[p];
      named.items.push_back({parameter.name, slices_[p]});
      named.whole.items.push_back(
          {.name = parameter.name,
           .shape = parameter.tensor.sizes().vec(),
           .options = slices_[p].options()});
    }
  }
  named.publish = while_alive(this, &SingleRankEngine::publish);
  return named;
}

void SingleRankEngine::publish() {
  published_ = true;
  check_parameters();
  bump_versions();  // Slices count versions of their own.
  if (memory_ && gradients_ > gradients_planned_) {
    gradients_planned_ = gradients_;
    (void)memory_->step_ended(0);
  }
}

double SingleRankEngine::clip_grad_norm(
    double max_norm, const ClipOptions& options) {
  return clip_gradients(
      defined_only(slices_), max_norm, options, [](const at::Tensor&) {});
}

void SingleRankEngine::begin_summon(const SummonOptions& options) {
  check_summon_options(options);
  (void)units_of(model_, options.module);
  SHERD_CHECK_AS(
      kFailedPrecondition, !summoned_,
      "[fsdp] summon_full_parameters() inside another such scope");
  check_parameters();
  summoned_ = options;
}

// As in SummonedParameters::take_back_replaced().
void SingleRankEngine::end_summon() {
  if (!summoned_) {
    return;
  }
  summoned_.reset();
  bool replaced = false;
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    if (shares_memory(p)) {
      continue;
    }
    const auto& parameter = model_.parameters[p];
    check_replacement(model_, parameter);
    const c10::InferenceMode off(false);
    const at::NoGradGuard no_grad;
    const auto slice = slices_[p].detach().view(parameter.tensor.sizes());
    slice.copy_(parameter.tensor);
    parameter.tensor.set_data(slice);
    replaced = true;
  }
  if (replaced) {
    bump_versions();
  }
}

void SingleRankEngine::begin_full_precision() {
  check_full_precision_scope(
      /*open=*/full_precision_, /*summoned=*/summoned_.has_value());
  full_precision_ = true;
}

at::Tensor SingleRankEngine::summoned_gradient(const std::string& name) {
  check_summon_scope(summoned_.has_value());
  check_summoned_gradients(summoned_->with_gradients);
  const auto& parameter = find_parameter(model_, name);
  const auto& slice =
      slices_[static_cast<std::size_t>(&parameter - model_.parameters.data())];
  return slice.defined() && slice.grad().defined()
      ? summoned_tensor(slice.grad().view(parameter.tensor.sizes()))
      : at::Tensor();
}

at::Tensor SingleRankEngine::summoned(const std::string& name) {
  check_summon_scope(summoned_.has_value());
  return summoned_tensor(find_parameter(model_, name).tensor);
}

// On more ranks it is a copy in any case.
at::Tensor SingleRankEngine::summoned_tensor(const at::Tensor& own) const {
  return summoned_->read_only ? own.detach().clone() : own.detach();
}

ShardReport SingleRankEngine::report() {
  ShardReport report;
  report.units = static_cast<int>(model_.units.size());
  report.by_unit = units();
  for (std::size_t p = 0; p < slices_.size(); ++p) {
    const auto& slice = slices_[p];
    if (slice.defined()) {
      const bool trains =
          model_.parameters[p].tensor.requires_grad() || slice.grad().defined();
      report.shard_bytes +=
          static_cast<std::int64_t>(slice.nbytes() * (trains ? 2 : 1));
    }
  }
  if (memory_) {
    report.memory = memory_->report();
  }
  return report;
}

void SingleRankEngine::close() {
  if (!begin_close()) {
    return;
  }
  memory_.reset();
  // More than one backward. A device would have to be waited for.
  if (model_.device.is_cpu() && gradients_ > trainable()) {
    warn_if_idle();
  }
}

}  // namespace sherd::fsdp
