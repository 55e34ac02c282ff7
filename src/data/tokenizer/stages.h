// SPDX-License-Identifier: Apache-2.0
//
// The stages of a tokenizer, each of which a component of tokenizer.json describes. Functions that
// take a component throw Error, naming what is wrong, if it is not supported. Thread rule: a stage
// is used by one thread at a time, except for decoders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>
#include <sherd/data/tokenizer.h>
#include "data/tokenizer/component.h"

namespace sherd::data {

// ---- "normalizer", which changes a text before it is cut into pieces ----

using TextStep = std::function<std::string(std::string_view)>;

// The steps in order; none if the component is null.
std::vector<TextStep> normalizer_steps(const Component& component);

// REQUIRES: text is UTF-8.
std::string normalized(
    const std::vector<TextStep>& steps, std::string_view text);

// ---- "pre_tokenizer", which cuts a normalized text into pieces ----

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

PreTokenizer pre_tokenizer_of(const Component& component);

// ---- "model", which turns each piece into ids ----

class TokenizerModel {
 public:
  TokenizerModel() = default;
  virtual ~TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;

  // Appends the ids of a piece. REQUIRES: the piece is UTF-8 and consists of whole characters.
  virtual void encode(
      std::string_view piece, std::vector<std::int64_t>& ids) = 0;

  // The tokens as tokenizer.json writes them, by id; empty for an id without a token.
  virtual const std::vector<std::string>& tokens() const = 0;
};

// Byte-level BPE: a piece starts as its bytes, and neighbours are merged, in the order of the table
// of merges (Sennrich et al. 2016; Radford et al. 2019). Also throws Error for a byte without a
// token, and for a merge whose parts or result are not tokens.
std::unique_ptr<TokenizerModel> byte_level_bpe_model(const Component& model);

// Unigram: among all ways to cut a piece into tokens, chooses the one with the largest sum of
// scores (Kudo 2018). Sums are made in the order and precision of `tokenizers`, because ways with
// equal sums are common (runs of one character) and rounding then decides.
std::unique_ptr<TokenizerModel> unigram_model(const Component& model);

// ---- "decoder", which joins tokens to text ----

// From tokens as tokenizer.json writes them to text, which may end inside a character.
using Decoder = std::function<std::string(const std::vector<std::string>&)>;

Decoder decoder_of(const Component& component);

// ---- "post_processor", which puts tokens around a text ----

// Sets `before` and `after`.
void read_post_processor(const Component& component, SpecialTokens& to);

}  // namespace sherd::data
