// SPDX-License-Identifier: Apache-2.0
//
// The "added_tokens" of tokenizer.json, special ones among them: where a text spells one out it is
// cut there, before or after it is normalized, and the token becomes its id without the model.
// Thread rule: used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"
#include "data/tokenizer/normalizer.h"
#include "data/tokenizer/regex.h"

namespace sherd::data {

// A part of a text: one added token, or text between them.
struct TextPart {
  std::string_view text;
  std::optional<std::int64_t> id;
  bool at_start = false;  // The part is the first of the text.
};

class AddedTokens {
 public:
  AddedTokens() = default;
  void add(const std::string& content, std::int64_t id, bool left, bool right);

  // To be called after the last add(), before cut().
  void compile(const std::string& where);

  // The parts in their order, none of them empty. Of tokens that start at the same place the
  // longest counts. REQUIRES: text is UTF-8.
  std::vector<TextPart> cut(const TextPart& part) const;

 private:
  struct Token {
    std::int64_t id;
    bool strips_left;   // White space before it belongs to it.
    bool strips_right;  // And after it.
  };
  TextRange widened(
      std::string_view text,
      TextRange range,
      std::size_t from,
      const Token& token) const;

  TextMap<Token> tokens_;
  std::optional<Regex> pattern_;  // None without tokens.
};

// Those looked for in the text as it is, and those looked for in the normalized text.
struct AddedVocabulary {
  AddedTokens raw;
  AddedTokens normalized;
};

// Enters the tokens into `tokens`, too. Throws Error, naming token and flag, for what is not
// supported.
AddedVocabulary added_vocabulary_of(
    const Component& component,
    const std::vector<TextStep>& normalizer,
    std::vector<std::string>& tokens);

}  // namespace sherd::data
