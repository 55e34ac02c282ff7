// SPDX-License-Identifier: Apache-2.0
//
// A reference in one process for ranks that have different numbers of inputs.
#pragma once

#include <functional>
#include <sherd/autograd/join.h>
#include "support/rank_parity.h"

namespace sherd::test {

struct UnevenInputs {
  JoinOptions join = {};
  std::function<int(int rank)> count;
};

// Runs backward of the reference over the ranks that have this batch; returns false if no rank has
// it.
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
