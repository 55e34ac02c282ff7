// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/check.h"
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"
#include "data/tokenizer/stages.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

// The difference in score between the least likely token and an unknown character.
constexpr double kUnknownPenalty = 10.0;

// The token of each byte, or nothing if one is missing.
std::vector<std::int64_t> byte_tokens(const TextMap<std::int64_t>& ids) {
  std::vector<std::int64_t> result;
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::array<char, 8> name{};
    std::snprintf(name.data(), name.size(), "<0x%02X>", byte);
    const auto found = ids.find(std::string_view(name.data()));
    if (found == ids.end()) {
      return {};
    }
    result.push_back(found->second);
  }
  return result;
}

class Unigram final : public TokenizerModel {
 public:
  explicit Unigram(const Component& model) : where_(model.where) {
    const auto vocab = model.field("vocab");
    double lowest = std::numeric_limits<double>::infinity();
    for (const auto& entry : vocab.json) {
      const std::string token = entry.at(0);
      ids_[token] = static_cast<std::int64_t>(tokens_.size());
      tokens_.push_back(token);
      scores_.push_back(entry.at(1));
      lowest = std::min(lowest, scores_.back());
    }
    if (tokens_.empty()) {
      vocab.refuse("at least one token", "none");
    }
    unknown_score_ = lowest - kUnknownPenalty;
    if (model.json.contains("unk_id") && !model.json["unk_id"].is_null()) {
      unknown_ = model.json["unk_id"].get<std::int64_t>();
      if (*unknown_ < 0 ||
          *unknown_ >= static_cast<std::int64_t>(tokens_.size())) {
        model.refuse(
            "unk_id below " + std::to_string(tokens_.size()),
            std::to_string(*unknown_));
      }
    }
    if (model.json.value("byte_fallback", false)) {
      byte_ids_ = byte_tokens(ids_);
    }
    build_trie();
  }

  void encode(std::string_view piece, std::vector<std::int64_t>& ids) override {
    if (cache_.append(piece, ids)) {
      return;
    }
    const auto from = ids.size();
    find_cuts(piece);
    std::vector<std::pair<std::size_t, std::size_t>> ranges;  // From the end.
    bool after_unknown = false;
    for (std::size_t end = piece.size(); end > 0;) {
      const auto& cut = cuts_[end];
      const bool unknown = unknown_.has_value() && cut.id == *unknown_;
      if (unknown && after_unknown) {
        ranges.back().first = cut.begin;  // Adjacent unknown parts are merged.
      } else {
        ranges.emplace_back(cut.begin, end);
      }
      after_unknown = unknown;
      end = cut.begin;
    }
    for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
      add_unknown(
          piece.substr(range->first, range->second - range->first), ids);
    }
    cache_.keep(piece, ids, from);
  }

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

  // Level by level: a node of depth d stands for the tokens [begin, end) of the sorted list, which
  // share their first d bytes.
  void build_trie() {
    std::vector<std::pair<std::string_view, std::int64_t>> sorted(
        ids_.begin(), ids_.end());
    std::sort(sorted.begin(), sorted.end());
    struct Range {
      std::size_t node, begin, end, depth;
    };
    trie_.emplace_back();
    std::vector<Range> open = {{0, 0, sorted.size(), 0}};
    for (std::size_t i = 0; i < open.size(); ++i) {
      auto [node, begin, end, depth] = open[i];
      if (begin < end && sorted[begin].first.size() == depth) {
        trie_[node].id = static_cast<std::int32_t>(sorted[begin++].second);
      }
      trie_[node].children = static_cast<std::uint32_t>(trie_.size());
      while (begin < end) {
        const char byte = sorted[begin].first[depth];
        auto same = begin;
        while (same < end && sorted[same].first[depth] == byte) {
          ++same;
        }
        open.push_back({trie_.size(), begin, same, depth + 1});
        trie_.push_back({.byte = static_cast<unsigned char>(byte)});
        ++trie_[node].child_count;
        begin = same;
      }
    }
  }

  const Node* child(const Node& node, unsigned char byte) const {
    const auto first = trie_.begin() + node.children;
    const auto last = first + node.child_count;
    const auto found = std::lower_bound(
        first, last, byte, [](const Node& each, unsigned char wanted) {
          return each.byte < wanted;
        });
    return found != last && found->byte == byte ? &*found : nullptr;
  }

  void offer(
      std::size_t begin, std::size_t end, std::int64_t id, double score) {
    const double sum = score + cuts_[begin].score;
    auto& cut = cuts_[end];
    if (!cut.reached || sum > cut.score) {
      cut = {.score = sum, .id = id, .begin = begin, .reached = true};
    }
  }

  void find_cuts(std::string_view piece) {
    cuts_.assign(piece.size() + 1, {});
    for (std::size_t begin = 0; begin < piece.size();) {
      const auto one = character_bytes(piece, begin);
      bool has_character = false;
      const Node* node = trie_.data();
      for (std::size_t end = begin; end < piece.size();) {
        node = child(*node, static_cast<unsigned char>(piece[end++]));
        if (node == nullptr) {
          break;
        }
        if (node->id >= 0) {
          offer(
              begin, end, node->id,
              scores_[static_cast<std::size_t>(node->id)]);
          has_character = has_character || end == begin + one;
        }
      }
      if (!has_character) {
        SHERD_CHECK(
            unknown_.has_value(), where_,
            ": expected unk_id for a character that has no token, found none");
        offer(begin, begin + one, *unknown_, unknown_score_);
      }
      begin += one;
    }
  }

  void add_unknown(
      std::string_view text, std::vector<std::int64_t>& ids) const {
    const auto found = ids_.find(text);
    if (found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
    for (const char c : byte_ids_.empty() ? "" : text) {
      ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    }
    if (byte_ids_.empty()) {
      ids.push_back(*unknown_);
    }
  }

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

}  // namespace

std::unique_ptr<TokenizerModel> unigram_model(const Component& model) {
  return std::make_unique<Unigram>(model);
}

}  // namespace sherd::data
