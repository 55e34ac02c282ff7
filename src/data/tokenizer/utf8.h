// SPDX-License-Identifier: Apache-2.0
//
// UTF-8 as defined by table 3-7 of the Unicode standard. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sherd/data/tokenizer.h>  // first_invalid_utf8

namespace sherd::data {

// The text with U+FFFD for each maximal part of an incomplete character, like Python's
// errors="replace" and Rust's from_utf8_lossy.
std::string repaired_utf8(std::string_view text);

// The bytes of the character that starts at `at`. REQUIRES: text is UTF-8, at < text.size() and a
// character starts there.
std::size_t character_bytes(std::string_view text, std::size_t at);

// The character's code point. The same REQUIRES.
std::uint32_t character_at(std::string_view text, std::size_t at);

// REQUIRES: a Unicode scalar value.
void append_character(std::uint32_t code_point, std::string& to);

// Whether the code point has the property White_Space of the Unicode character database.
bool is_white_space(std::uint32_t code_point);

}  // namespace sherd::data
