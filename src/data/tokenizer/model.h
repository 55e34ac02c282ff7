// SPDX-License-Identifier: Apache-2.0
//
// What the models of tokenizer.json have in common: tables by text, a cache, and the table of
// tokens by id. Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "base/digest.h"
#include "data/tokenizer/component.h"

namespace sherd::data {

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return digest_of(text);
  }
};
template <typename Value>
using TextMap =
    std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// A cache of the ids of pieces, because text repeats itself. It is cleared when it is full.
class PieceCache {
 public:
  // If the piece is cached, appends its ids and returns true.
  bool append(std::string_view piece, std::vector<std::int64_t>& ids) const {
    const auto found = places_.find(piece);
    if (found == places_.end()) {
      return false;
    }
    const auto first = ids_.begin() + found->second.first;
    ids.insert(ids.end(), first, first + found->second.count);
    return true;
  }

  // Caches the ids from index `from` on for the piece, unless the piece is long: long pieces seldom
  // come again.
  void keep(
      std::string_view piece,
      const std::vector<std::int64_t>& ids,
      std::size_t from) {
    if (piece.size() > kPieceBytesMax) {
      return;
    }
    if (places_.size() >= kPiecesMax) {
      places_.clear();
      ids_.clear();
    }
    places_.emplace(
        piece,
        Place{
            static_cast<std::uint32_t>(ids_.size()),
            static_cast<std::uint32_t>(ids.size() - from)});
    ids_.insert(
        ids_.end(), ids.begin() + static_cast<std::ptrdiff_t>(from), ids.end());
  }

 private:
  static constexpr std::size_t kPieceBytesMax = 64;
  static constexpr std::size_t kPiecesMax = 1 << 18;  // Some 25 MB.

  struct Place {
    std::uint32_t first;
    std::uint32_t count;
  };
  TextMap<Place> places_;
  std::vector<std::int64_t> ids_;
};

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
