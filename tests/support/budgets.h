// SPDX-License-Identifier: Apache-2.0
//
// The byte budgets with which a model can be sharded: from the least that works to one that has
// room for the whole model.
#pragma once

#include <cstdint>
#include <vector>
#include <sherd/fsdp/fully_shard.h>
#include "exchange/exchange.h"
#include "fsdp/model_units.h"
#include "plan/budget.h"

namespace sherd::test {

struct Budgets {
  std::int64_t floor = 0;
  std::int64_t total = 0;
};

// For this many ranks along the shard axis.
inline Budgets budgets_of(
    const torch::nn::Module& module,
    const FullyShardOptions& options,
    int ranks) {
  const auto units = fsdp::build_units(
      module, ranks, {.units = options.units, .ignored = options.ignored});
  const auto sizes = fsdp::policy_unit_sizes(units);
  return {plan::budget_floor(sizes), plan::total_unit_bytes(sizes)};
}

}  // namespace sherd::test
