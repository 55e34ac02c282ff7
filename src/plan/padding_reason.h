// SPDX-License-Identifier: Apache-2.0
//
// Says in one sentence what the padding of a finished layout is for.
// Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include "plan/flat_layout.h"

namespace sherd::plan {

struct PaddingSteps {      // In elements.
  std::int64_t start = 1;  // Parameters start at multiples of this.
  std::int64_t share = 1;  // Equal shares are multiples of this.
};

// "no padding", or each cause with its elements. REQUIRES: `parameters` are the
// layout's own.
std::string padding_reason(
    const FlatLayout& layout,
    std::span<const FlatParameter> parameters,
    const PaddingSteps& steps);

}  // namespace sherd::plan
