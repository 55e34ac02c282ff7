// SPDX-License-Identifier: Apache-2.0
//
// Charsmap is SentencePiece's table of characters and what replaces them ("Precompiled" in
// tokenizer.json): a double array as darts-clone lays it out, and the replacements after it.
// Thread rule: any thread, nothing changes after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::data {

class Charsmap {
 public:
  // `base64` as tokenizer.json has it. Throws Error prefixed by `where` when it is cut.
  Charsmap(const std::string& base64, const std::string& where);

  // What `tokenizers` makes of a text: each grapheme of less than six bytes is replaced as a whole
  // by what the shortest entry that it starts with says, else each of its characters is.
  // REQUIRES: text is UTF-8.
  std::string normalize(std::string_view text) const;

 private:
  // The replacement of the shortest entry that `key` starts with.
  std::optional<std::string_view> replacement(std::string_view key) const;
  void normalize_grapheme(std::string_view grapheme, std::string& to) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace sherd::data
