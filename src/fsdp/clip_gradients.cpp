// SPDX-License-Identifier: Apache-2.0
#include "fsdp/clip_gradients.h"

#include <cmath>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>

#include "base/check.h"

namespace sherd::fsdp {
namespace {

// As torch.nn.utils.clip_grad_norm_: keeps the factor finite at norm zero.
constexpr double kEpsilon = 1e-6;

double larger(double a, double b) {
  return b > a || std::isnan(b) ? b : a;  // A NaN stays.
}

// The largest norm of a gradient, or the sum of their powers. The host waits for a device once.
double combine_norms(const std::vector<at::Tensor>& leaves, double p) {
  std::vector<at::Tensor> norms;
  for (const auto& leaf : leaves) {
    if (const auto& gradient = leaf.grad(); gradient.defined()) {
      norms.push_back(at::linalg_vector_norm(
          gradient, p, std::nullopt, false, c10::ScalarType::Double));
    }
  }
  double all = 0;
  const auto found = norms.empty() ? at::Tensor() : at::stack(norms).cpu();
  for (std::size_t i = 0; i < norms.size(); ++i) {
    const double norm = found.const_data_ptr<double>()[i];
    all = std::isinf(p) ? larger(all, norm) : all + std::pow(norm, p);
  }
  return all;
}

}  // namespace

double clip_gradients(
    const std::vector<at::Tensor>& leaves,
    double max_norm,
    const ClipOptions& options,
    const std::function<void(const at::Tensor&)>& combine) {
  SHERD_CHECK(
      options.p > 0, "[fsdp] clip_grad_norm expects p > 0 or infinity, found ",
      options.p);
  SHERD_CHECK(
      max_norm >= 0, "[fsdp] clip_grad_norm expects max_norm >= 0, found ",
      max_norm);
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(options.p);
  const auto total =
      at::full({1}, combine_norms(leaves, options.p), c10::ScalarType::Double);
  combine(total);
  const double combined = *total.const_data_ptr<double>();
  const double norm = largest ? combined : std::pow(combined, 1.0 / options.p);
  SHERD_CHECK_AS(
      kFailedPrecondition, !options.error_if_nonfinite || std::isfinite(norm),
      "[fsdp] the norm of all gradients is ", norm,
      "; expected a finite number");
  const double factor = max_norm / (norm + kEpsilon);
  // Not std::min: a NaN norm must reach the gradients, as in PyTorch.
  if (!(factor >= 1.0)) {
    for (const auto& leaf : leaves) {
      if (const auto& gradient = leaf.grad(); gradient.defined()) {
        gradient.mul_(factor);
      }
    }
  }
  return norm;
}

}  // namespace sherd::fsdp
