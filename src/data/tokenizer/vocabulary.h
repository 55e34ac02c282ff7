// SPDX-License-Identifier: Apache-2.0
//
// The table of tokens by id. Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

// Far above any vocabulary; a larger id means damage, and would take all memory.
inline constexpr std::int64_t kIdsMax = 1 << 24;

// Enters a token under its id. Throws Error, naming `where`, if the id is out of range.
inline void set_token(
    std::vector<std::string>& tokens,
    std::int64_t id,
    const std::string& token,
    const Component& where) {
  if (id < 0 || id >= kIdsMax) {
    where.refuse(
        "ids in [0, " + std::to_string(kIdsMax) + ")",
        std::to_string(id) + " of \"" + token + "\"");
  }
  const auto index = static_cast<std::size_t>(id);
  if (index >= tokens.size()) {
    tokens.resize(index + 1);
  }
  tokens[index] = token;
}

}  // namespace sherd::data
