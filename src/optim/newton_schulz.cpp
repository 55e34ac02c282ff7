// SPDX-License-Identifier: Apache-2.0
#include "optim/newton_schulz.h"

#include <algorithm>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

namespace sherd::optim {

std::int64_t newton_schulz_cost(std::int64_t rows, std::int64_t columns) {
  const auto shorter = std::min(rows, columns);
  const auto longer = std::max(rows, columns);
  return shorter * shorter * (2 * longer + shorter);
}

// The same operators as in torch.optim.Muon.
at::Tensor orthogonalised(
    const at::Tensor& matrix, const MuonOptions& options) {
  const auto [a, b, c] = options.coefficients;
  // Products of rows must give the smaller square.
  const bool tall = matrix.size(0) > matrix.size(1);
  auto x = matrix.to(options.iteration_dtype);
  x = tall ? x.t() : x;
  x = x.div(at::linalg_vector_norm(x).clamp_min(options.epsilon));
  for (int i = 0; i < options.iterations; ++i) {
    const auto gram = at::mm(x, x.t());
    const auto change = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, change, x, a);
  }
  return tall ? x.t() : x;
}

}  // namespace sherd::optim
