// SPDX-License-Identifier: Apache-2.0
//
// What ranks exchange at the end of a backward, and what they compare when they open an exchange.
// It is small, and has the same size on every rank. Thread rule: pure functions and values.
#pragma once

#include <span>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "exchange/exchange.h"

namespace sherd::exchange {

bool is_any_set(const std::vector<bool>& marks);
// Sets the marks that are set in `marks`, which may be more or fewer.
void add_marks(std::vector<bool>& to, const std::vector<bool>& marks);

// A rank's BackwardEnd together with the marks of its reductions so far, in the form that is sent
// to the others.
struct BackwardStatus : BackwardEnd {
  void mark_used(UnitId unit, const std::vector<bool>& used_here);
  // Takes over `end`, in addition to the marks that are already set.
  void set_end(const BackwardEnd& end);

  // uint8, 1-D; of the same length for every status of one model.
  at::Tensor encode(const ModelSpec& model) const;
};

// Combines the encoded statuses of all ranks, which are by index. Returns kAborted, naming the
// first rank that gave up and its reason, if a rank did.
Result<BackwardOutcome> combine_backward_statuses(
    const ModelSpec& model,
    std::span<const at::Tensor> statuses,
    std::span<const int> world_ranks);

// Compares the ranks' descriptions of one model. Empty if they are equal, otherwise a sentence with
// the first line that differs and the ranks.
std::string first_difference(
    std::span<const std::string> descriptions,
    std::span<const int> world_ranks);

}  // namespace sherd::exchange
