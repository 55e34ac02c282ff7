// SPDX-License-Identifier: Apache-2.0
//
// Lines of text whose columns lie below each other. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>

namespace sherd {

// The text with spaces behind it, up to `width`.
inline std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

// As printf; at most 159 characters.
template <typename... Values>
std::string columns(const char* format, Values... values) {
  char text[160];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

}  // namespace sherd
