// SPDX-License-Identifier: Apache-2.0
//
// Newton-Schulz iterations towards the nearest orthogonal matrix, U V^T for U S V^T; singular
// values end near 1 rather than at it. Muon's updates are made of them. Thread rule: pure
// functions, any thread.
#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include <sherd/optim/muon.h>

namespace sherd::optim {

// The multiplications of one iteration: with m the shorter side and n the longer, those of X X^T
// (m m n), A A (m m m) and B X (m m n).
std::int64_t newton_schulz_cost(std::int64_t rows, std::int64_t columns);

// Returns a tensor in the shape of `matrix` (2-D) and the dtype of the iteration.
at::Tensor orthogonalised(const at::Tensor& matrix, const MuonOptions& options);

}  // namespace sherd::optim
