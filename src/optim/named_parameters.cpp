// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/named_parameters.h>

#include "optim/slice_set.h"

namespace sherd {

SplitParameters split(
    const NamedParameters& parameters,
    const std::vector<std::string>& patterns) {
  const auto those = [&](bool matching) {
    NamedParameters kept = parameters;
    const auto goes = [&](const auto& item) {
      return optim::matches_any(patterns, item.name, parameters.tied_names) !=
          matching;
    };
    std::erase_if(kept.items, goes);
    std::erase_if(kept.state_only, goes);
    std::erase_if(kept.whole.items, goes);
    return kept;
  };
  return {.matching = those(true), .rest = those(false)};
}

}  // namespace sherd
