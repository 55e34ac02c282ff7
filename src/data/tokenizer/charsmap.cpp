// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/charsmap.h"

#include <cstring>
#include <utf8proc.h>
#include "base/check.h"
#include "data/tokenizer/utf8.h"

namespace sherd::data {
namespace {

constexpr std::size_t kGraphemeBytes = 6;

int base64_digit(char c) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto at = kDigits.find(c);
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

std::string from_base64(const std::string& text) {
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const int digit = base64_digit(c);
    if (digit < 0) {
      break;  // Padding.
    }
    bits = (bits << 6U) | static_cast<std::uint32_t>(digit);
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes += static_cast<char>((bits >> static_cast<unsigned>(held)) & 0xFFU);
    }
  }
  return bytes;
}

// The fields of a unit of the double array.
bool has_leaf(std::uint32_t unit) { return ((unit >> 8U) & 1U) == 1; }
std::uint32_t label(std::uint32_t unit) { return unit & 0x800000FFU; }
std::uint32_t offset(std::uint32_t unit) {
  return (unit >> 10U) << ((unit & (1U << 9U)) >> 6U);
}
std::uint32_t value(std::uint32_t unit) { return unit & 0x7FFFFFFFU; }

}  // namespace

Charsmap::Charsmap(const std::string& base64, const std::string& where) {
  const auto bytes = from_base64(base64);
  std::uint32_t trie_bytes = 0;
  SHERD_CHECK(
      bytes.size() >= sizeof(trie_bytes), where,
      ": expected a charsmap, found ", bytes.size(), " bytes");
  std::memcpy(&trie_bytes, bytes.data(), sizeof(trie_bytes));
  const auto rest = bytes.size() - sizeof(trie_bytes);
  SHERD_CHECK(
      trie_bytes % sizeof(std::uint32_t) == 0 && trie_bytes > 0 &&
          trie_bytes < rest && bytes.back() == '\0',
      where, ": expected a charsmap whose trie of ", trie_bytes,
      " bytes is followed by texts, found ", rest, " bytes");
  units_.resize(trie_bytes / sizeof(std::uint32_t));
  std::memcpy(units_.data(), bytes.data() + sizeof(trie_bytes), trie_bytes);
  replacements_ = bytes.substr(sizeof(trie_bytes) + trie_bytes);
}

std::optional<std::string_view> Charsmap::replacement(
    std::string_view key) const {
  std::uint32_t node = offset(units_[0]);
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) {
      return std::nullopt;
    }
    const auto unit = units_[node];
    node ^= offset(unit);
    if (has_leaf(unit) && node < units_.size()) {
      const auto start = value(units_[node]);
      return start < replacements_.size()
          ? std::optional<std::string_view>(replacements_.c_str() + start)
          : std::nullopt;
    }
  }
  return std::nullopt;
}

void Charsmap::normalize_grapheme(
    std::string_view grapheme, std::string& to) const {
  if (grapheme.size() < kGraphemeBytes) {
    if (const auto whole = replacement(grapheme)) {
      to += *whole;
      return;
    }
  }
  for (std::size_t at = 0; at < grapheme.size();) {
    const auto part = grapheme.substr(at, character_bytes(grapheme, at));
    to += replacement(part).value_or(part);
    at += part.size();
  }
}

std::string Charsmap::normalize(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  utf8proc_int32_t state = 0;
  std::size_t begin = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const auto next = at + character_bytes(text, at);
    const bool ends =
        next == text.size() ||
        utf8proc_grapheme_break_stateful(
            static_cast<utf8proc_int32_t>(character_at(text, at)),
            static_cast<utf8proc_int32_t>(character_at(text, next)), &state);
    if (ends) {
      normalize_grapheme(text.substr(begin, next - begin), result);
      begin = next;
    }
    at = next;
  }
  // A file may have any bytes as replacements, but callers need UTF-8.
  return first_invalid_utf8(result) == result.size() ? result
                                                     : repaired_utf8(result);
}

}  // namespace sherd::data
