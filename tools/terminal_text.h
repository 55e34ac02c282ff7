// SPDX-License-Identifier: Apache-2.0
//
// Makes texts from others safe for a terminal. Thread rule: a pure function.
#pragma once

#include <algorithm>
#include <string>

namespace sherd::tools {

// The text with "?" in place of characters that a terminal would obey, such as escape sequences.
inline std::string printable_on_terminal(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f;
      },
      '?');
  return text;
}

}  // namespace sherd::tools
