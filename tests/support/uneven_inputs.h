// SPDX-License-Identifier: Apache-2.0
//
// What one process does in place of ranks that have different numbers of inputs.
#pragma once

#include <functional>
#include <sherd/autograd/join.h>
#include "support/rank_parity.h"

namespace sherd::test {

struct UnevenInputs {
  JoinOptions join = {};
  std::function<int(int rank)> count;
};

// Backward of the reference over the ranks that have this batch; false: nobody has.
template <typename Model>
bool backward_of_active(
    Model& reference,
    const Pass<Model>& pass,
    const World& world,
    const UnevenInputs& inputs,
    int batch) {
  int active = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (batch < inputs.count(rank)) {
      pass(reference, batch, rank).backward();
      ++active;
    }
  }
  const int divisor =
      inputs.join.divide_by_initial_world_size ? world.size() : active;
  for (auto& parameter : reference->parameters()) {
    if (parameter.grad().defined()) {
      parameter.mutable_grad().mul_(1.0 / divisor);
    }
  }
  return active > 0;
}

}  // namespace sherd::test
