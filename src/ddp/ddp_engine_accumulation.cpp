// SPDX-License-Identifier: Apache-2.0
// DdpEngine's part for sums that are not divided by the number of replicas.
//
// In a backward each rank gives its `.grad()` to the sum, including what earlier backwards have
// left there. What no_sync() has left is this rank's own. What ranks have already summed is the
// same on all of them: a mean does not change when it is averaged again; with any other factor it
// is scaled before autograd adds to it.
#include <ATen/core/grad_mode.h>

#include "autograd/gradient_hook.h"
#include "ddp/ddp_engine.h"

namespace sherd::ddp {
namespace {

// Multiplies gradients before autograd adds them to `.grad()`.
autograd::PreAccumulationCallback scale_gradients(double scale) {
  return [scale](at::Tensor& gradient) {
    if (gradient.defined()) {
      gradient = gradient.mul(scale);
    }
  };
}

}  // namespace

void DdpEngine::watch_accumulation() {
  if (scale_of_summed() == 1.0) {
    return;
  }
  for (std::size_t p = 0; p < accumulation_hooks_.size(); ++p) {
    const auto& parameter = keyed_.parameters()[p].tensor;
    if (accumulation_hooks_[p] != nullptr || !parameter.requires_grad()) {
      continue;
    }
    accumulation_hooks_[p] = autograd::add_pre_accumulation_hook(
        parameter,
        alone() ? scale_gradients(1.0 / divide_factor())
                : while_alive(this, [p](DdpEngine& self, at::Tensor&) {
                    const std::lock_guard lock(self.mu_);
                    self.before_accumulation(p);
                  }));
  }
}

void DdpEngine::before_accumulation(std::size_t p) {
  const auto& grad = keyed_.parameters()[p].tensor.mutable_grad();
  if (summed_[p] && grad.defined()) {
    const at::NoGradGuard no_grad;
    grad.mul_(scale_of_summed());
  }
  summed_[p] = false;
}

}  // namespace sherd::ddp
