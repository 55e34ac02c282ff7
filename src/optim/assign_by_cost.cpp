// SPDX-License-Identifier: Apache-2.0
#include "optim/assign_by_cost.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace sherd::optim {

std::int64_t newton_schulz_cost(std::int64_t rows, std::int64_t columns) {
  const auto shorter = std::min(rows, columns);
  const auto longer = std::max(rows, columns);
  return shorter * shorter * (2 * longer + shorter);
}

std::vector<int> assign_by_cost(
    const std::vector<std::int64_t>& costs, int ranks) {
  SHERD_ASSERT(ranks >= 1);
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });
  std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks), 0);
  std::vector<int> owners(costs.size(), 0);
  for (const std::size_t item : order) {
    const auto least = std::ranges::min_element(loads);
    *least += costs[item];
    owners[item] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

}  // namespace sherd::optim
