// SPDX-License-Identifier: Apache-2.0
//
// Numbers as texts, texts as numbers, and lines of text in columns. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace sherd {

// The value as 16 hexadecimal digits.
inline std::string hex(std::uint64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%016" PRIx64, value);
  return text;
}

// The number that the whole text stands for; empty if it is not a number or out of the type's
// range. `format` is what std::from_chars() takes: the base of an integer.
template <typename Number, typename... Format>
std::optional<Number> parse_number(std::string_view text, Format... format) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] =
      std::from_chars(text.data(), end, value, format...);
  return error == std::errc() && stop == end ? std::optional(value)
                                             : std::nullopt;
}

// The text, padded with spaces on the right to `width`.
inline std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// Formats as printf does; at most 159 characters.
template <typename... Values>
std::string columns(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace sherd
