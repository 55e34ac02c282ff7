// SPDX-License-Identifier: Apache-2.0
//
// Lines for a terminal. Pure functions. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>
#include "base/printable.h"

namespace sherd::tools {

// Each line with a newline, truncated after `columns` characters, and without what a terminal would
// obey.
inline std::string text_of_lines(
    const std::vector<std::string>& lines, std::size_t columns) {
  std::string text;
  for (const auto& line : lines) {
    text += printable(line, columns) + "\n";
  }
  return text;
}

}  // namespace sherd::tools
