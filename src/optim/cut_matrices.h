// SPDX-License-Identifier: Apache-2.0
//
// Matrices of which each rank has a part and one rank, the owner, needs the whole for a while: two
// all-to-alls, to the owners and back, in which each element is sent once. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::optim {

struct CutMatrix {
  int owner = 0;
  std::vector<std::int64_t> cuts;  // As WholeParameter.
  at::TensorOptions options;       // Likewise.
  at::Tensor part;   // 1-D, contiguous. Undefined: this rank has none.
  at::Tensor whole;  // Likewise, on the owner.
};

// Collective, of the same matrices on every rank: fills `whole` on the owners, which it makes, from
// all ranks' parts.
void gather_parts(
    const WholeParameters& ranks, std::vector<CutMatrix>& matrices);
// Collective: fills all ranks' parts from `whole`.
void scatter_parts(
    const WholeParameters& ranks, const std::vector<CutMatrix>& matrices);

}  // namespace sherd::optim
