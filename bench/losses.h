// SPDX-License-Identifier: Apache-2.0
//
// Whether contenders trained the same model on the same data. If not, comparing their times is
// meaningless. Thread rule: pure functions, any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace sherd::bench {

// For fp32. Ranks add gradients in another order than one process, and GPTs of this size then
// differ by about 1e-6 after a few steps; a contender that does not update, or updates with other
// gradients, differs by more than 1e-3.
constexpr double kLossTolerance = 1e-4;
// For bf16, whose rounding errors are 65,536 times as large; and not all contenders round in the
// same places: autocast keeps norms in fp32.
constexpr double kBf16LossTolerance = 2e-2;

// The first losses of a contender, averaged over the ranks.
struct FirstLosses {
  std::string name;
  std::vector<double> losses;
  // How many of them are determined by what all contenders have in common. The bound exchanges
  // nothing, so with several ranks its copies diverge after the first update: 1.
  std::size_t comparable = 0;
};

// A sentence that names contenders, step and losses; empty if all agree with the first of them that
// has the step.
std::string disagreement(
    const std::vector<FirstLosses>& contenders,
    double tolerance = kLossTolerance);

}  // namespace sherd::bench
