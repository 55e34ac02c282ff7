// SPDX-License-Identifier: Apache-2.0
//
// Matrices of which each rank has a part, and which one rank, the owner, needs as a whole for a
// while: who owns which, so that all ranks finish at about the same time, and two all-to-alls, to
// the owners and back, in which each element is sent once. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include <sherd/optim/named_parameters.h>

namespace sherd::optim {

struct CutMatrix {
  int owner = 0;
  std::vector<std::int64_t> cuts;  // As in WholeParameter.
  at::TensorOptions options;       // As in WholeParameter.
  at::Tensor part;   // 1-D, contiguous. Undefined: this rank has none.
  at::Tensor whole;  // 1-D, contiguous. Only on the owner.
};

// Returns the owner of each item. Items are assigned in order of falling cost, each to the rank
// with the least cost so far (Graham 1969: at most 4/3 of the time of the best assignment); ties go
// by index and by rank. REQUIRES: ranks >= 1, costs >= 0.
std::vector<int> assign_by_cost(
    const std::vector<std::int64_t>& costs, int ranks);

// Collective; every rank passes the same matrices. Makes and fills `whole` on the owners from the
// parts of all ranks.
void gather_parts(
    const WholeParameters& ranks, const std::vector<CutMatrix*>& matrices);
// Collective: fills the parts of all ranks from `whole`.
void scatter_parts(
    const WholeParameters& ranks, const std::vector<CutMatrix*>& matrices);

}  // namespace sherd::optim
