// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/sgd.h>

#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include "base/check.h"
#include "optim/slice_set.h"

namespace sherd {
namespace {

constexpr const char* kSgd = "Sgd";

SgdOptions checked(SgdOptions options) {
  optim::check_not_negative(kSgd, "learning_rate", options.learning_rate);
  optim::check_not_negative(kSgd, "momentum", options.momentum);
  SHERD_CHECK(
      !options.nesterov || options.momentum > 0.0, "[optim] ", kSgd,
      ": expected momentum above 0 with nesterov, found ", options.momentum);
  return options;
}

}  // namespace

struct Sgd::Impl {
  Impl(NamedParameters parameters, const SgdOptions& given)
      : options(checked(given)),
        slices(
            std::move(parameters),
            {.owner = kSgd,
             .state_tensors = given.momentum > 0.0 ? 1U : 0U,
             .weight_decay = given.weight_decay,
             .groups = given.groups}) {}

  SgdOptions options;
  optim::SliceSet slices;
};

Sgd::Sgd(NamedParameters parameters, const SgdOptions& options)
    : impl_(std::make_unique<Impl>(std::move(parameters), options)) {}
Sgd::~Sgd() = default;
Sgd::Sgd(Sgd&&) noexcept = default;
Sgd& Sgd::operator=(Sgd&&) noexcept = default;

void Sgd::step() {
  const at::NoGradGuard no_grad;
  const SgdOptions& options = impl_->options;
  for (optim::SliceSet::Batch& batch : impl_->slices.begin_update()) {
    // PyTorch initialises the buffer with the first gradient. A buffer of zeros gives the same,
    // momentum * 0 + gradient, because there is no dampening, so first and later updates of slices
    // go into one call.
    const at::TensorList buffers =
        batch.states.empty() ? at::TensorList() : batch.states.front();
    at::_fused_sgd_(
        batch.parameters, batch.gradients, buffers, batch.weight_decay,
        options.momentum, options.learning_rate * batch.learning_rate_scale,
        /*dampening=*/0.0, options.nesterov, /*maximize=*/false,
        /*is_first_step=*/false);
  }
  impl_->slices.end_update();
}

void Sgd::zero_grad() { impl_->slices.zero_grad(); }

void Sgd::set_learning_rate(double learning_rate) {
  optim::check_not_negative(kSgd, "learning_rate", learning_rate);
  impl_->options.learning_rate = learning_rate;
}

double Sgd::learning_rate() const { return impl_->options.learning_rate; }

std::vector<std::string> Sgd::names() const { return impl_->slices.names(); }

at::Tensor Sgd::momentum_buffer(const std::string& name) {
  SHERD_CHECK(
      impl_->options.momentum > 0.0, "[optim] ", kSgd,
      ": expected momentum above 0 to ask for a buffer, found 0");
  return impl_->slices.state(name, 0);
}

std::vector<OptimizerTensor> Sgd::tensors(const std::set<std::string>& also) {
  std::vector<OptimizerTensor> tensors;
  if (impl_->options.momentum == 0.0) {
    return tensors;
  }
  auto& slices = impl_->slices;
  for (const auto& name : names()) {
    if (also.contains(name)) {
      slices.set_has_state(name, true);  // It is about to be loaded.
    }
    if (slices.has_state(name)) {
      tensors.push_back(
          {name, "momentum_buffer", momentum_buffer(name),
           [&slices, name] { slices.set_has_state(name, false); }});
    }
  }
  return tensors;
}

}  // namespace sherd
