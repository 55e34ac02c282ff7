// SPDX-License-Identifier: Apache-2.0
//
// What ranks exchange at the end of a backward, and what they compare when they open an exchange: small,
// and of the same size on every rank. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "exchange/exchange.h"

namespace sherd::exchange {

// A rank's BackwardEnd, with the marks of its reductions so far, as it is sent to the others.
struct BackwardStatus : BackwardEnd {
  void mark_used(UnitId unit, const std::vector<bool>& used_here);
  // Takes what `end` says, beside the marks that are there.
  void set_end(const BackwardEnd& end);

  // uint8, 1-D; equally long for every status of one model.
  at::Tensor encode(const ModelSpec& model) const;
};

// From the encoded statuses of all ranks, by index. kAborted, naming the first
// rank that gave up and its reason, when one did.
Result<BackwardOutcome> combine_backward_statuses(
    const ModelSpec& model,
    std::span<const at::Tensor> statuses,
    std::span<const int> world_ranks);

// Descriptions of one model by its ranks: empty when they are equal, else a
// sentence with the first line that differs and the ranks.
std::string first_difference(
    std::span<const std::string> descriptions,
    std::span<const int> world_ranks);

}  // namespace sherd::exchange
