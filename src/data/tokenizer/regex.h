// SPDX-License-Identifier: Apache-2.0
//
// Regex finds the patterns of tokenizer.json with PCRE2. They are written for Oniguruma, which
// `tokenizers` uses; where the two differ, a pattern is translated or refused. Both know the
// characters of Unicode 14. Thread rule: one thread at a time, because a search writes to scratch
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include "data/tokenizer/component.h"

namespace sherd::data {

class Regex {
 public:
  // The bytes of a text from `begin` to before `end`.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };

  // Throws Error, naming the pattern and prefixed by `where`, if it has a construct that is not
  // supported or is not a valid pattern.
  Regex(const std::string& pattern, const std::string& where);
  ~Regex();
  Regex(Regex&&) noexcept;

  // The leftmost match that starts at `from` or later and is not empty. REQUIRES: text is UTF-8,
  // and a character starts at `from` or the text ends there. Throws Error if the match needs more
  // memory than 64 MiB.
  std::optional<Range> find(std::string_view text, std::size_t from) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A pattern that matches exactly this text.
std::string quoted_pattern(std::string_view text);

// A "pattern" of tokenizer.json: {"Regex": text} or {"String": text}.
Regex pattern_of(const Component& component);

}  // namespace sherd::data
