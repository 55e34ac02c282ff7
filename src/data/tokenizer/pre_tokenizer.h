// SPDX-License-Identifier: Apache-2.0
//
// What tokenizer.json's "pre_tokenizer" does: it cuts a normalized text into pieces, which the model
// encodes one by one. Thread rule: used by one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

struct Piece {
  std::string_view text;
  bool at_start = false;  // It is the start of its document.
};

// Called with each piece in order, whose text is gone after the call.
using PieceSink = std::function<void(const Piece&)>;
// Cuts a piece into smaller ones.
using PieceStep = std::function<void(const Piece&, const PieceSink&)>;

struct PreTokenizer {
  std::vector<PieceStep> steps;
  bool has_byte_level = false;  // The model sees bytes, not characters.

  // Calls `sink` with what the steps from `step` on, one after the other, make of a piece.
  void cut(
      const Piece& piece, const PieceSink& sink, std::size_t step = 0) const;
};

// Throws Error for a pre-tokenizer that is not supported, by its name.
PreTokenizer pre_tokenizer_of(const Component& component);

}  // namespace sherd::data
