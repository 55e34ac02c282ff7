// SPDX-License-Identifier: Apache-2.0
//
// printf into a string. Thread rule: any thread.
#pragma once

#include <cstdarg>
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

}  // namespace sherd::tools
