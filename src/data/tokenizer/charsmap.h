// SPDX-License-Identifier: Apache-2.0
//
// Charsmap is SentencePiece's table of characters and their replacements ("Precompiled" in
// tokenizer.json): a double array in the layout of darts-clone, followed by the replacements.
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
  // `base64` is the text in tokenizer.json. Throws Error, prefixed by `where`, if it is cut off.
  Charsmap(const std::string& base64, const std::string& where);

  // Returns what `tokenizers` makes of a text: a grapheme of fewer than six bytes is replaced as a
  // whole if an entry is a prefix of it (the shortest such entry counts); otherwise each of its
  // characters is replaced. REQUIRES: text is UTF-8.
  std::string normalize(std::string_view text) const;

 private:
  // The replacement of the shortest entry that is a prefix of `key`.
  std::optional<std::string_view> replacement(std::string_view key) const;
  void normalize_grapheme(std::string_view grapheme, std::string& to) const;

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

}  // namespace sherd::data
