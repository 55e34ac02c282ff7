// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/grad_scaler.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <vector>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include "base/check.h"

namespace sherd {
namespace {

constexpr const char* kScaler = "GradScaler";
constexpr double kScaleMin = std::numeric_limits<float>::min();

void check(const GradScalerOptions& options) {
  const auto expect = [](bool holds, const char* expected, double found) {
    SHERD_CHECK(
        holds, "[optim] ", kScaler, ": expected ", expected, ", found ", found);
  };
  expect(
      options.init_scale >= kScaleMin &&
          options.init_scale <= std::numeric_limits<float>::max(),
      "init_scale to be positive and in the range of fp32", options.init_scale);
  expect(
      std::isfinite(options.growth_factor) && options.growth_factor > 1.0,
      "growth_factor to be finite and above 1", options.growth_factor);
  expect(
      options.backoff_factor > 0.0 && options.backoff_factor < 1.0,
      "backoff_factor between 0 and 1", options.backoff_factor);
  expect(
      options.growth_interval > 0, "growth_interval of at least 1",
      options.growth_interval);
}

// The same on every rank, so either all of them throw or none.
void check_fp16(const NamedParameters& parameters) {
  const auto& items = parameters.items;
  SHERD_CHECK(
      !items.empty() || !parameters.whole.items.empty(), "[optim] ", kScaler,
      ": expected at least one parameter, found none");
  const bool plain = parameters.whole.items.empty() &&
      std::ranges::any_of(items, [](const auto& item) {
                       return item.slice.scalar_type() == at::kHalf;
                     });
  SHERD_CHECK(
      plain || parameters.uses_fp16, "[optim] ", kScaler,
      ": expected parameters that are used in fp16 "
      "(FullyShardOptions::mixed_precision), found none: fp32 and bf16 need no "
      "scaler; set GradScalerOptions::uses_fp16 if autocast or a hook uses "
      "fp16");
}

at::Tensor number(double value, at::ScalarType dtype) {
  return at::full({}, value, dtype);
}

}  // namespace

struct GradScaler::Impl {
  // Divides this rank's gradients by the scale. Returns whether all of them are finite, for which
  // the host waits for each device once.
  bool unscale_here() const {
    std::unordered_map<c10::Device, std::vector<at::Tensor>> by_device;
    for (const auto& item : parameters.items) {
      if (const auto& gradient = item.slice.grad(); gradient.defined()) {
        by_device[gradient.device()].push_back(
            gradient.is_sparse() ? gradient._values() : gradient);
      }
    }
    const double factor = 1.0 / scale.item<double>();
    bool all_finite = true;
    for (auto& [device, gradients] : by_device) {
      auto found = number(0, at::kFloat).to(device);
      at::_amp_foreach_non_finite_check_and_unscale_(
          gradients, found, number(factor, at::kFloat).to(device));
      all_finite = found.item<double>() == 0.0 && all_finite;
    }
    return all_finite;
  }

  NamedParameters parameters;
  GradScalerOptions options;
  at::Tensor scale = number(options.init_scale, at::kFloat);
  at::Tensor growth_tracker = number(0, at::kInt);
  // These three are since the last update().
  bool unscaled = false;
  bool finite = true;  // Once unscaled: whether all gradients are, on any rank.
  bool stepped = false;
};

GradScaler::GradScaler(
    NamedParameters parameters, const GradScalerOptions& options) {
  check(options);
  if (!options.uses_fp16) {
    check_fp16(parameters);
  }
  impl_ = std::make_unique<Impl>(
      Impl{.parameters = std::move(parameters), .options = options});
}
GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  const auto& writes = impl_->parameters.writes_in_backward;
  SHERD_CHECK_AS(
      kFailedPrecondition, !writes || !writes(), "[optim] ", kScaler,
      ": an optimizer updates in backward, from gradients that are still "
      "scaled and before it is known whether all of them are finite; construct "
      "it without in_backward");
  // A 0-D fp32 tensor, because the product with an fp16 loss is then fp32.
  return loss.mul(number(get_scale(), at::kFloat));
}

void GradScaler::unscale() {
  SHERD_CHECK_AS(
      kFailedPrecondition, !impl_->unscaled, "[optim] ", kScaler,
      ": expected update() after a step's gradients were unscaled, found "
      "unscale() again");
  if (impl_->parameters.check_gradients_writable) {
    impl_->parameters.check_gradients_writable("GradScaler::unscale()");
  }
  const at::NoGradGuard no_grad;
  const auto any =
      at::full({1}, impl_->unscale_here() ? 0.0 : 1.0, at::kDouble);
  if (impl_->parameters.all_reduce_max) {
    impl_->parameters.all_reduce_max(any);
  }
  impl_->finite = any.item<double>() == 0.0;
  impl_->unscaled = true;
}

bool GradScaler::step_with(const std::function<void()>& make_step) {
  SHERD_CHECK_AS(
      kFailedPrecondition, !impl_->stepped, "[optim] ", kScaler,
      ": expected update() after step(), found step() again");
  if (!impl_->unscaled) {
    unscale();
  }
  impl_->stepped = true;
  if (impl_->finite) {
    make_step();
  } else if (impl_->parameters.publish) {
    // As the optimizer would have done: parameters that are not published count as stale.
    impl_->parameters.publish();
  }
  return impl_->finite;
}

// Uses the arithmetic of torch.amp.GradScaler.
void GradScaler::update() {
  SHERD_CHECK_AS(
      kFailedPrecondition, impl_->unscaled, "[optim] ", kScaler,
      ": expected unscale() or step() before update(), found neither");
  const auto& options = impl_->options;
  const int finite_steps =
      impl_->finite ? impl_->growth_tracker.item<int>() + 1 : 0;
  const bool grows = finite_steps >= options.growth_interval;
  const double factor = !impl_->finite ? options.backoff_factor
      : grows                          ? options.growth_factor
                                       : 1.0;
  const double next = get_scale() * factor;
  SHERD_CHECK_AS(
      kFailedPrecondition, next >= kScaleMin, "[optim] ", kScaler,
      ": the scale has fallen to ", next,
      ", since the gradients of all steps were infinite or not a number; "
      "expected finite ones at some scale");
  if (next <= std::numeric_limits<float>::max()) {
    impl_->scale.fill_(next);
  }
  impl_->growth_tracker.fill_(grows ? 0 : finite_steps);
  impl_->unscaled = false;
  impl_->stepped = false;
}

double GradScaler::get_scale() const { return impl_->scale.item<double>(); }

std::vector<std::pair<std::string, at::Tensor>> GradScaler::state() const {
  return {{"scale", impl_->scale}, {"growth_tracker", impl_->growth_tracker}};
}

}  // namespace sherd
