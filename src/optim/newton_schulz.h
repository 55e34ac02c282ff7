// SPDX-License-Identifier: Apache-2.0
//
// The nearest orthogonal matrix, roughly: U V' for U S V', singular values
// ending near 1 rather than at it. Thread rule: pure, any thread.
#pragma once

#include <array>
#include <ATen/core/Tensor.h>

namespace sherd::optim {

struct NewtonSchulzOptions {
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  int iterations = 5;
  double epsilon = 1e-7;  // The norm divided by is at least this.
  at::ScalarType dtype = at::kBFloat16;
};

// Of the shape of `matrix` (2-D), in the dtype of the iteration; `matrix` is
// only read.
at::Tensor orthogonalised(
    const at::Tensor& matrix, const NewtonSchulzOptions& iteration);

}  // namespace sherd::optim
