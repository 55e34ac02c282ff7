// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/adamw.h>

#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include "base/check.h"
#include "optim/slice_set.h"

namespace sherd {
namespace {

constexpr const char* kAdamW = "AdamW";
constexpr std::size_t kExpAvg = 0;
constexpr std::size_t kExpAvgSq = 1;

void check_beta(const char* what, double beta) {
  SHERD_CHECK(
      beta >= 0.0 && beta < 1.0, "[optim] ", kAdamW, ": expected ", what,
      " in [0, 1), found ", beta);
}

AdamWOptions checked(AdamWOptions options) {
  optim::check_not_negative(kAdamW, "learning_rate", options.learning_rate);
  optim::check_not_negative(kAdamW, "epsilon", options.epsilon);
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  return options;
}

}  // namespace

struct AdamW::Impl {
  Impl(NamedParameters parameters, const AdamWOptions& given)
      : options(checked(given)),
        slices(
            std::move(parameters),
            {.owner = kAdamW,
             .state_tensors = 2,
             .counts_updates = true,
             // With an epsilon of 0, padding would become 0 / 0.
             .joins_over_padding = given.epsilon > 0.0,
             .weight_decay = given.weight_decay,
             .groups = given.groups}) {
    if (options.in_backward) {
      slices.update_in_backward(
          [this](const optim::SliceSet::Batch& batch) { update(batch); });
    }
  }

  void update(const optim::SliceSet::Batch& batch) const {
    at::_fused_adamw_(
        batch.parameters, batch.gradients, batch.states[kExpAvg],
        batch.states[kExpAvgSq], /*max_exp_avg_sqs=*/{}, batch.steps,
        options.learning_rate * batch.learning_rate_scale, options.beta1,
        options.beta2, batch.weight_decay, options.epsilon, /*amsgrad=*/false,
        /*maximize=*/false);
  }

  AdamWOptions options;
  optim::SliceSet slices;
};

AdamW::AdamW(NamedParameters parameters, const AdamWOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), options)) {}
AdamW::~AdamW() = default;
AdamW::AdamW(AdamW&&) noexcept = default;
AdamW& AdamW::operator=(AdamW&&) noexcept = default;

void AdamW::step() {
  const at::NoGradGuard no_grad;
  for (const optim::SliceSet::Batch& batch : impl_->slices.begin_update()) {
    impl_->update(batch);
  }
  impl_->slices.end_update();
}

void AdamW::zero_grad() { impl_->slices.zero_grad(); }

void AdamW::set_learning_rate(double learning_rate) {
  optim::check_not_negative(kAdamW, "learning_rate", learning_rate);
  impl_->options.learning_rate = learning_rate;
}

double AdamW::learning_rate() const { return impl_->options.learning_rate; }

std::vector<std::string> AdamW::names() const { return impl_->slices.names(); }

AdamWState AdamW::state(const std::string& name) {
  return {
      .exp_avg = impl_->slices.state(name, kExpAvg),
      .exp_avg_sq = impl_->slices.state(name, kExpAvgSq),
      .step = impl_->slices.step(name)};
}

std::vector<OptimizerTensor> AdamW::tensors(const std::set<std::string>& also) {
  std::vector<OptimizerTensor> tensors;
  for (const auto& name : names()) {
    if (!also.contains(name) &&
        impl_->slices.step(name).item<float>() == 0.0F) {
      continue;
    }
    const auto found = state(name);
    tensors.push_back({name, "exp_avg", found.exp_avg});
    tensors.push_back({name, "exp_avg_sq", found.exp_avg_sq});
    tensors.push_back({name, "step", found.step});
  }
  return tensors;
}

}  // namespace sherd
