// SPDX-License-Identifier: Apache-2.0
//
// The size of the terminal, and texts that are printed at once, safe for it, or cut to its width.
// Thread rule: any thread.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>
#include "base/printable.h"

namespace sherd::tools {

struct TerminalSize {
  std::size_t columns = 80;
  std::size_t rows = 0;  // 0 means unknown.
};

// That of the terminal on stdout, if it is one.
inline TerminalSize terminal_size() {
  winsize size = {};
  const bool known =
      ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? TerminalSize{.columns = size.ws_col, .rows = size.ws_row}
               : TerminalSize{};
}

// Prints on stdout, without waiting for more.
inline void print_at_once(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

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
