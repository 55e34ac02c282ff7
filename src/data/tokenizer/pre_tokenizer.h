// SPDX-License-Identifier: Apache-2.0
//
// The "pre_tokenizer" of tokenizer.json, which cuts a normalized text into pieces; the model
// encodes them one by one. Thread rule: used by one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>
#include "data/tokenizer/component.h"

namespace sherd::data {

struct Piece {
  std::string_view text;
  bool at_start = false;  // Whether it is the start of its document.
};

// Called with each piece in order; the piece's text is invalid after the call.
using PieceSink = std::function<void(const Piece&)>;
// Cuts a piece into smaller ones.
using PieceStep = std::function<void(const Piece&, const PieceSink&)>;

struct PreTokenizer {
  std::vector<PieceStep> steps;
  bool has_byte_level = false;  // The model sees bytes, not characters.

  // Applies the steps from `step` on, one after the other, to a piece, and calls `sink` with the
  // results.
  void cut(
      const Piece& piece, const PieceSink& sink, std::size_t step = 0) const;
};

// Throws Error, naming the pre-tokenizer, if it is not supported.
PreTokenizer pre_tokenizer_of(const Component& component);

}  // namespace sherd::data
