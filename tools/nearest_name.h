// SPDX-License-Identifier: Apache-2.0
//
// Which known name a user may have meant. Pure functions. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::tools {

// Levenshtein's distance: how many characters must be inserted, removed or
// replaced to make one text the other.
inline std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);  // For each prefix of `to`.
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < to.size(); ++j) {
      const auto replaced = diagonal + (from[i] == to[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

// " (did you mean NAME?)" with the nearest of `names`; "" if even that one differs in at least half
// of its characters.
inline std::string suggestion(
    std::string_view found, const std::vector<std::string>& names) {
  const std::string* nearest = nullptr;
  std::size_t least = 0;
  for (const auto& name : names) {
    const auto distance = edit_distance(found, name);
    if (nearest == nullptr || distance < least) {
      nearest = &name;
      least = distance;
    }
  }
  return nearest != nullptr && 2 * least < nearest->size()
      ? " (did you mean " + *nearest + "?)"
      : "";
}

}  // namespace sherd::tools
