// SPDX-License-Identifier: Apache-2.0
//
// The "added_tokens" of tokenizer.json, including the special ones: a text is cut where it spells
// one out, before or after it is normalized, and the token becomes its id without the model. Thread
// rule: used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>
#include "data/tokenizer/component.h"
#include "data/tokenizer/model.h"
#include "data/tokenizer/regex.h"
#include "data/tokenizer/stages.h"

namespace sherd::data {

// A part of a text: one added token, or text between added tokens.
struct TextPart {
  std::string_view text;
  std::optional<std::int64_t> id;
  bool at_start = false;  // Whether it is the first part of the text.
};

class AddedTokens {
 public:
  struct Token {
    std::int64_t id;
    bool strips_left;   // White space before it belongs to it.
    bool strips_right;  // White space after it belongs to it.
  };
  // `tokens` is by content. `where` is for messages.
  AddedTokens(TextMap<Token> tokens, const std::string& where);

  // The parts in order, none of them empty. If several tokens start at the same place, the longest
  // counts. REQUIRES: text is UTF-8.
  std::vector<TextPart> cut(const TextPart& part) const;

 private:
  Regex::Range widened(
      std::string_view text,
      Regex::Range range,
      std::size_t from,
      const Token& token) const;

  TextMap<Token> tokens_;
  std::optional<Regex> pattern_;  // Empty without tokens.
};

// The tokens searched for in the original text, and those searched for in the normalized text.
struct AddedVocabulary {
  AddedTokens raw;
  AddedTokens normalized;
};

// Also enters the added tokens into `tokens`. Throws Error, naming token and flag, for what is not
// supported.
AddedVocabulary added_vocabulary_of(
    const Component& component,
    const std::vector<TextStep>& normalizer,
    std::vector<std::string>& tokens);

}  // namespace sherd::data
