// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
#include "base/check.h"
#include "base/hash.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"
#include "data/tokenizer/stages.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32U) |
      static_cast<std::uint32_t>(right);
}

// The two tokens of an entry, "a b" or ["a", "b"].
std::pair<std::string, std::string> parts_of(const Component& merge) {
  if (merge.json.is_array() && merge.json.size() == 2) {
    return {merge.json[0], merge.json[1]};
  }
  const std::string text = merge.json.is_string() ? merge.json : "";
  const auto space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != text.npos) {
    merge.refuse("a merge of two tokens", merge.json.dump());
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

class ByteLevelBpe final : public TokenizerModel {
 public:
  explicit ByteLevelBpe(const Component& model) {
    model.expect("dropout", 0.0);
    model.expect("continuing_subword_prefix", "");
    model.expect("end_of_word_suffix", "");
    model.expect("byte_fallback", false);
    const auto vocab = model.field("vocab");
    read_vocabulary(vocab);
    read_merges(model.field("merges"), vocab);
    if (model.json.value("ignore_merges", false)) {
      for (const auto& [token, id] : vocab.json.items()) {
        if (const auto bytes = bytes_of_token(token)) {
          whole_pieces_.emplace(*bytes, id.get<std::int64_t>());
        }
      }
    }
  }

  void encode(std::string_view piece, std::vector<std::int64_t>& ids) override {
    if (cache_.append(piece, ids)) {
      return;
    }
    const auto from = ids.size();
    const auto whole = whole_pieces_.find(piece);
    if (whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
    } else {
      SHERD_CHECK(
          piece.size() < (std::size_t{1} << 31U),
          "[data] expected pieces of less than 2 GiB, found one of ",
          piece.size(), " bytes");
      merge_piece(piece, ids);
    }
    cache_.keep(piece, ids, from);
  }

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

  void read_vocabulary(const Component& vocab) {
    for (const auto& [token, id] : vocab.json.items()) {
      set_token(tokens_, id, token, vocab);
    }
    for (int byte = 0; byte < 256; ++byte) {
      std::string token;
      append_character(
          character_of_byte(static_cast<unsigned char>(byte)), token);
      const auto found = vocab.json.find(token);
      if (found == vocab.json.end()) {
        vocab.refuse(
            "a token for each of the 256 bytes",
            "none for byte " + std::to_string(byte) + " (\"" + token + "\")");
      }
      byte_ids_[static_cast<std::size_t>(byte)] = found->get<std::int32_t>();
    }
  }

  void read_merges(const Component& merges, const Component& vocab) {
    const auto id_of = [&](const Component& merge, const std::string& token) {
      const auto found = vocab.json.find(token);
      if (found == vocab.json.end()) {
        merge.refuse("tokens of the vocabulary", "\"" + token + "\"");
      }
      return found->get<std::int32_t>();
    };
    merges_.reserve(merges.json.size());
    for (std::size_t rank = 0; rank < merges.json.size(); ++rank) {
      const auto merge = merges.item(rank);
      const auto [left, right] = parts_of(merge);
      merges_[pair_key(id_of(merge, left), id_of(merge, right))] = {
          .rank = static_cast<std::uint32_t>(rank),
          .id = id_of(merge, left + right)};
    }
  }

  const Merge* merge_of(std::int32_t left, std::int32_t right) const {
    const auto found = merges_.find(pair_key(left, right));
    return found == merges_.end() ? nullptr : &found->second;
  }

  // Adds the pair of a symbol and the next one, if it can be merged.
  void add_candidate(std::int32_t at) {
    if (at < 0 || symbols_[static_cast<std::size_t>(at)].next < 0) {
      return;
    }
    const auto& left = symbols_[static_cast<std::size_t>(at)];
    const auto& right = symbols_[static_cast<std::size_t>(left.next)];
    if (const auto* merge = merge_of(left.id, right.id)) {
      candidates_.push_back({merge->rank, at, merge->id});
      std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    }
  }

  // Merges the pair, unless it has changed since it was found. A pair that merges to the same token
  // counts as unchanged, as in `tokenizers`.
  void merge_at(const Candidate& candidate) {
    auto& left = symbols_[static_cast<std::size_t>(candidate.at)];
    if (left.id < 0 || left.next < 0) {
      return;
    }
    auto& right = symbols_[static_cast<std::size_t>(left.next)];
    const auto* merge = merge_of(left.id, right.id);
    if (merge == nullptr || merge->id != candidate.id) {
      return;
    }
    left.id = candidate.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols_[static_cast<std::size_t>(left.next)].previous = candidate.at;
    }
    add_candidate(left.previous);
    add_candidate(candidate.at);
  }

  void merge_piece(std::string_view piece, std::vector<std::int64_t>& ids) {
    const auto size = static_cast<std::int32_t>(piece.size());
    symbols_.clear();
    candidates_.clear();
    for (std::int32_t i = 0; i < size; ++i) {
      const auto byte =
          static_cast<unsigned char>(piece[static_cast<std::size_t>(i)]);
      symbols_.push_back(
          {.id = byte_ids_[byte],
           .previous = i - 1,
           .next = i + 1 < size ? i + 1 : -1});
    }
    for (std::int32_t i = 0; i < size; ++i) {
      add_candidate(i);
    }
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
      const auto candidate = candidates_.back();
      candidates_.pop_back();
      merge_at(candidate);
    }
    for (const auto& symbol : symbols_) {
      if (symbol.id >= 0) {
        ids.push_back(symbol.id);
      }
    }
  }

  std::vector<std::string> tokens_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::unordered_map<std::uint64_t, Merge, PairHash> merges_;
  TextMap<std::int64_t> whole_pieces_;  // Only with ignore_merges.
  PieceCache cache_;
  // Scratch of merge_piece().
  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::unique_ptr<TokenizerModel> byte_level_bpe_model(const Component& model) {
  return std::make_unique<ByteLevelBpe>(model);
}

}  // namespace sherd::data
