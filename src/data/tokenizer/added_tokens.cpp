// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

// The start of the character before `at`.
std::size_t character_before(std::string_view text, std::size_t at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

}  // namespace

AddedTokens::AddedTokens(TextMap<Token> tokens, const std::string& where)
    : tokens_(std::move(tokens)) {
  std::vector<std::string> contents;
  for (const auto& [content, token] : tokens_) {
    contents.push_back(content);
  }
  if (contents.empty()) {
    return;
  }
  // The first alternative that matches wins, so the longest come first.
  std::sort(contents.begin(), contents.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  std::string pattern;
  for (const auto& content : contents) {
    pattern += pattern.empty() ? "" : "|";
    pattern += quoted_pattern(content);
  }
  pattern_.emplace(pattern, where);
}

Regex::Range AddedTokens::widened(
    std::string_view text,
    Regex::Range range,
    std::size_t from,
    const Token& token) const {
  while (token.strips_left && range.begin > from) {
    const auto before = character_before(text, range.begin);
    if (!is_white_space(character_at(text, before))) {
      break;
    }
    range.begin = before;
  }
  while (token.strips_right && range.end < text.size() &&
         is_white_space(character_at(text, range.end))) {
    range.end += character_bytes(text, range.end);
  }
  return range;
}

std::vector<TextPart> AddedTokens::cut(const TextPart& part) const {
  std::vector<TextPart> parts;
  const auto text = part.text;
  const auto add = [&](Regex::Range range, std::optional<std::int64_t> id) {
    if (range.end > range.begin) {
      parts.push_back(
          {.text = text.substr(range.begin, range.end - range.begin),
           .id = id,
           .at_start = part.at_start && range.begin == 0});
    }
  };
  std::size_t done = 0;
  while (pattern_) {
    const auto match = pattern_->find(text, done);
    if (!match) {
      break;
    }
    const auto& token =
        tokens_.find(text.substr(match->begin, match->end - match->begin))
            ->second;
    const auto range = widened(text, *match, done, token);
    add({done, range.begin}, std::nullopt);
    add(range, token.id);
    done = range.end;
  }
  add({done, text.size()}, std::nullopt);
  return parts;
}

AddedVocabulary added_vocabulary_of(
    const Component& component,
    const std::vector<TextStep>& normalizer,
    std::vector<std::string>& tokens) {
  TextMap<AddedTokens::Token> raw;
  TextMap<AddedTokens::Token> changed;  // Searched for in normalized text.
  for (std::size_t i = 0; i < component.json.size(); ++i) {
    const auto token = component.item(i);
    token.expect("single_word", false);
    const std::int64_t id = token.json.at("id");
    const bool left = token.json.value("lstrip", false);
    const bool right = token.json.value("rstrip", false);
    const bool special = token.json.value("special", false);
    const bool normalizes = token.json.value("normalized", !special);
    std::string content = token.json.at("content");
    if (normalizes) {  // Decoding shows it normalized, too.
      content = normalized(normalizer, content);
    }
    set_token(tokens, id, content, token);
    if (!content.empty()) {
      (normalizes ? changed : raw)[content] = {
          .id = id, .strips_left = left, .strips_right = right};
    }
  }
  return {
      .raw = AddedTokens(std::move(raw), component.where),
      .normalized = AddedTokens(std::move(changed), component.where)};
}

}  // namespace sherd::data
