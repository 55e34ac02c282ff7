// SPDX-License-Identifier: Apache-2.0
//
// Numbers in texts, printf into a string, and words for a shell. Thread rule: any thread.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string>

namespace sherd::tools {

// At most 255 characters; the rest is truncated.
[[gnu::format(printf, 1, 2)]] inline std::string format(
    const char* pattern, ...) {
  char text[256];
  va_list values;
  va_start(values, pattern);
  std::vsnprintf(text, sizeof(text), pattern, values);
  va_end(values);
  return text;
}

// "1 rank", "2 ranks".
inline std::string counted(std::int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

// A word as a shell reads it back: in single quotes, if it has characters that mean something there.
inline std::string shell_quoted(const std::string& word) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./"
      ":=+-@%,";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

}  // namespace sherd::tools
