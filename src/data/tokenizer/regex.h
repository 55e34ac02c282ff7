// SPDX-License-Identifier: Apache-2.0
//
// Regex finds the patterns of tokenizer.json by PCRE2. They are written for Oniguruma, with which
// `tokenizers` reads them; where the two differ the pattern is rewritten or refused. Both know the
// characters of Unicode 14. Thread rule: one thread at a time, a search writes to scratch memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace sherd::data {

struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

class Regex {
 public:
  // Throws Error naming the pattern, prefixed by `where`, when it has a construct that is not
  // supported or is no pattern.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The leftmost match that starts at `from` or later and is not empty. REQUIRES: text is UTF-8 and
  // a character starts at `from`, or the text ends there. Throws Error when the match needs more
  // memory than 64 MiB.
  std::optional<TextRange> find(std::string_view text, std::size_t from) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A pattern that matches this text and nothing else.
std::string quoted_pattern(std::string_view text);

}  // namespace sherd::data
