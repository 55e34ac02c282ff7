// SPDX-License-Identifier: Apache-2.0
//
// Formats lines of text in columns. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

namespace sherd {

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
