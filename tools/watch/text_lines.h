// SPDX-License-Identifier: Apache-2.0
//
// Lines for a terminal. Pure functions. Thread rule: any thread.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>
#include "base/printable.h"

namespace sherd::tools {

// At most 255 characters.
[[gnu::format(printf, 1, 2)]] inline std::string format(
    const char* pattern, ...) {
  char text[256];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof(text), pattern, values);
  va_end(values);
  return text;
}

// Each with a newline, cut after `columns` characters, and without what a
// terminal would obey.
inline std::string text_of_lines(
    const std::vector<std::string>& lines, std::size_t columns) {
  std::string text;
  for (const auto& line : lines) {
    text += printable(line, columns) + "\n";
  }
  return text;
}

}  // namespace sherd::tools
