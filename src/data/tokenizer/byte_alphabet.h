// SPDX-License-Identifier: Apache-2.0
//
// GPT-2's alphabet, in which tokenizer.json writes bytes: printable characters of Latin-1 stand for
// themselves, and the characters from U+0100 on stand for the other 68 bytes. Thread rule: pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sherd::data {

// The character that stands for a byte.
std::uint32_t character_of_byte(unsigned char byte);

// The bytes that a token stands for; empty if it has a character outside the alphabet. REQUIRES:
// token is UTF-8.
std::optional<std::string> bytes_of_token(std::string_view token);

}  // namespace sherd::data
