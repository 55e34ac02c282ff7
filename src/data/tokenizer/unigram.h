// SPDX-License-Identifier: Apache-2.0
//
// Unigram: among all ways to cut a piece into tokens, chooses the one with the largest sum of
// scores (Kudo 2018). Sums are made in the order and precision of `tokenizers`, because ways with
// equal sums are common (runs of one character) and rounding then decides. Thread rule: one thread
// at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"

namespace sherd::data {

class Unigram : public TokenizerModel {
 public:
  // `model` is of type Unigram. Throws Error, naming the field, if it is not valid.
  explicit Unigram(const Component& model);

  void encode(std::string_view piece, std::vector<std::int64_t>& ids) override;
  const std::vector<std::string>& tokens() const override { return tokens_; }

 private:
  // The children of a node of the trie are adjacent, in the order of their bytes.
  struct Node {
    std::uint32_t children = 0;
    std::uint16_t child_count = 0;
    unsigned char byte = 0;  // The byte that leads here.
    std::int32_t id = -1;    // The token that ends here; -1: none.
  };
  // The best way to cut the text up to here, which ends with token `id` from `begin` on.
  struct Cut {
    double score = 0;
    std::int64_t id = -1;
    std::size_t begin = 0;
    bool reached = false;
  };

  void build_trie();
  const Node* child(const Node& node, unsigned char byte) const;
  void offer(std::size_t begin, std::size_t end, std::int64_t id, double score);
  void find_cuts(std::string_view piece);
  void add_unknown(std::string_view text, std::vector<std::int64_t>& ids) const;

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  TextMap<std::int64_t> ids_;
  std::vector<std::int64_t> byte_ids_;  // Empty without byte_fallback.
  std::optional<std::int64_t> unknown_;
  double unknown_score_ = 0;
  std::vector<Node> trie_;
  std::string where_;
  PieceCache cache_;
  std::vector<Cut> cuts_;  // Scratch: by the byte where they end.
};

}  // namespace sherd::data
