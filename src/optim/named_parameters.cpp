// SPDX-License-Identifier: Apache-2.0
#include <sherd/optim/named_parameters.h>

#include <fnmatch.h>
#include <algorithm>
#include "optim/name_patterns.h"

namespace sherd {

bool optim::matches_any(
    const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

bool optim::matches_any(
    const std::vector<std::string>& patterns,
    const std::string& name,
    const std::map<std::string, std::string>& tied_names) {
  return matches_any(patterns, name) ||
      std::ranges::any_of(tied_names, [&](const auto& tied) {
           return tied.second == name && matches_any(patterns, tied.first);
         });
}

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
