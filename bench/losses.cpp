// SPDX-License-Identifier: Apache-2.0
#include "bench/losses.h"

#include <algorithm>
#include <cmath>
#include "format_text.h"

namespace sherd::bench {

std::string disagreement(
    const std::vector<FirstLosses>& contenders, double tolerance) {
  std::size_t steps = 0;
  for (const auto& each : contenders) {
    steps = std::max(steps, each.comparable);
  }
  for (std::size_t step = 0; step < steps; ++step) {
    const FirstLosses* reference = nullptr;
    for (const auto& each : contenders) {
      if (step >= each.comparable) {
        continue;
      }
      if (reference == nullptr) {
        reference = &each;
      }
      const double wanted = reference->losses[step];
      const double found = each.losses[step];
      // Not ">", because a loss that is NaN must agree with nothing.
      if (!(std::abs(found - wanted) <= tolerance)) {
        return tools::format(
            "expected all losses within %g of each other, found in step %zu "
            "%s %.6f and %s %.6f; the times would compare different work",
            tolerance, step + 1, reference->name.c_str(), wanted,
            each.name.c_str(), found);
      }
    }
  }
  return "";
}

}  // namespace sherd::bench
