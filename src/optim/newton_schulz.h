// SPDX-License-Identifier: Apache-2.0
//
// Newton-Schulz iterations towards the nearest orthogonal matrix, U V^T for U S V^T; singular
// values end near 1 rather than at it. Muon's updates are made of them. Thread rule: pure
// functions, any thread.
#pragma once

#include <array>
#include <ATen/core/Tensor.h>

namespace sherd::optim {

struct NewtonSchulzOptions {
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  int iterations = 5;
  double epsilon = 1e-7;  // The norm used as a divisor is at least this.
  at::ScalarType dtype = at::kBFloat16;
};

// Returns a tensor in the shape of `matrix` (2-D) and the dtype of the iteration.
at::Tensor orthogonalised(
    const at::Tensor& matrix, const NewtonSchulzOptions& iteration);

}  // namespace sherd::optim
