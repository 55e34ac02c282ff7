// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/utf8.h"

#include <cstring>

namespace sherd::data {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

unsigned byte_at(std::string_view text, std::size_t at) {
  return static_cast<unsigned char>(text[at]);
}

// How many bytes from `at` on belong together, and whether they are a whole character.
struct Prefix {
  std::size_t bytes;
  bool complete;
};

struct LeadByte {
  std::size_t bytes;  // Of the character; 0: not a valid first byte.
  unsigned second_min;
  unsigned second_max;
};

LeadByte lead(unsigned byte) {
  if (byte < 0x80) {
    return {1, 0, 0};
  }
  if (byte >= 0xC2 && byte <= 0xDF) {
    return {2, 0x80, 0xBF};
  }
  if (byte >= 0xE0 && byte <= 0xEF) {
    return {3, byte == 0xE0 ? 0xA0U : 0x80U, byte == 0xED ? 0x9FU : 0xBFU};
  }
  if (byte >= 0xF0 && byte <= 0xF4) {
    return {4, byte == 0xF0 ? 0x90U : 0x80U, byte == 0xF4 ? 0x8FU : 0xBFU};
  }
  return {0, 0, 0};
}

Prefix prefix_at(std::string_view text, std::size_t at) {
  const auto first = lead(byte_at(text, at));
  if (first.bytes < 2) {
    return {1, first.bytes == 1};
  }
  for (std::size_t i = 1; i < first.bytes; ++i) {
    const unsigned low = i == 1 ? first.second_min : 0x80;
    const unsigned high = i == 1 ? first.second_max : 0xBF;
    if (at + i >= text.size() || byte_at(text, at + i) < low ||
        byte_at(text, at + i) > high) {
      return {i, false};
    }
  }
  return {first.bytes, true};
}

bool is_ascii_word(std::string_view text, std::size_t at) {
  std::uint64_t word = 0;
  std::memcpy(&word, text.data() + at, sizeof(word));
  return (word & 0x8080808080808080ULL) == 0;
}

}  // namespace

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (at + sizeof(std::uint64_t) <= text.size() && is_ascii_word(text, at)) {
      at += sizeof(std::uint64_t);
      continue;
    }
    const auto prefix = prefix_at(text, at);
    if (!prefix.complete) {
      return at;
    }
    at += prefix.bytes;
  }
  return text.size();
}

std::string repaired_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto valid = first_invalid_utf8(text);
    result += text.substr(0, valid);
    text.remove_prefix(valid);
    if (!text.empty()) {
      result += kReplacement;
      text.remove_prefix(prefix_at(text, 0).bytes);
    }
  }
  return result;
}

std::size_t character_bytes(std::string_view text, std::size_t at) {
  return lead(byte_at(text, at)).bytes;
}

std::uint32_t character_at(std::string_view text, std::size_t at) {
  const auto count = character_bytes(text, at);
  if (count == 1) {
    return byte_at(text, at);
  }
  std::uint32_t code_point = byte_at(text, at) & (0x7FU >> count);
  for (std::size_t i = 1; i < count; ++i) {
    code_point = (code_point << 6U) | (byte_at(text, at + i) & 0x3FU);
  }
  return code_point;
}

void append_character(std::uint32_t code_point, std::string& to) {
  if (code_point < 0x80) {
    to += static_cast<char>(code_point);
    return;
  }
  const int more = code_point < 0x800 ? 1 : code_point < 0x10000 ? 2 : 3;
  const unsigned mark = 0xF00U >> static_cast<unsigned>(more + 1);
  to += static_cast<char>(
      (mark & 0xFFU) | (code_point >> static_cast<unsigned>(6 * more)));
  for (int i = more - 1; i >= 0; --i) {
    const auto bits = code_point >> static_cast<unsigned>(6 * i);
    to += static_cast<char>(0x80U | (bits & 0x3FU));
  }
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
      c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
      c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace sherd::data
