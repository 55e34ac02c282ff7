// SPDX-License-Identifier: Apache-2.0
//
// Byte-level BPE: a piece starts as its bytes, and neighbours are merged, in the order of the table
// of merges (Sennrich et al. 2016; Radford et al. 2019). Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "base/hash.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"

namespace sherd::data {

class ByteLevelBpe : public TokenizerModel {
 public:
  // `model` is of type BPE. Throws Error, naming the field, for what is not supported, for a byte
  // without a token, and for a merge whose parts or result are not tokens.
  explicit ByteLevelBpe(const Component& model);

  void encode(std::string_view piece, std::vector<std::int64_t>& ids) override;
  const std::vector<std::string>& tokens() const override { return tokens_; }

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  struct PairHash {
    std::size_t operator()(std::uint64_t pair) const { return mix64(pair); }
  };
  // A token of the piece while it is merged; in a linked list, so that a merge moves nothing.
  struct Symbol {
    std::int32_t id;  // -1: merged into the one before it.
    std::int32_t previous;
    std::int32_t next;
  };
  // A pair that could be merged, as it was when it was found.
  struct Candidate {
    std::uint32_t rank;
    std::int32_t at;
    std::int32_t id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };

  void read_vocabulary(const Component& vocab);
  void read_merges(const Component& merges, const Component& vocab);
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;
  void add_candidate(std::int32_t at);
  void merge_at(const Candidate& candidate);
  void merge_piece(std::string_view piece, std::vector<std::int64_t>& ids);

  std::vector<std::string> tokens_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
  TextMap<std::int64_t> whole_pieces_;  // Only with ignore_merges.
  PieceCache cache_;
  // Scratch of merge_piece().
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

}  // namespace sherd::data
